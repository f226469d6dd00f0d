//! Fuzz target of store URLs and the settings of all engines.

use std::fmt::Display;

use super::support::url::store_url::Engine;
use super::{StoreUrl, dynamodb, github, http, postgres, redis, sqlite};
use crate::error::Error;
use crate::fuzz_corpus;
use crate::testing::fuzz::{Shape, fuzz};

/// Password or token in the URLs of the corpus.
const SECRET: &str = "s3cr3t";

#[test]
fn store_urls_are_parsed_or_refused_without_showing_a_secret() {
    fuzz(fuzz_corpus!("store-urls"), 5_000, |input| {
        let text = String::from_utf8_lossy(input);
        let url = match StoreUrl::parse(&text) {
            Ok(url) => url,
            Err(error) => return refused(&text, &error),
        };
        shows_no_secret(&text, &url);
        let shown = url.to_string();
        let again = StoreUrl::parse(&shown).expect("a displayed URL is one");
        assert_eq!(again.to_string(), shown, "what was displayed is displayed again");
        let options = match url.engine().expect("a parsed URL has an engine") {
            Engine::Memory => Ok(None),
            Engine::Sqlite => sqlite::SqliteOptions::from_url(&url).map(|options| {
                assert!(!options.path.as_os_str().is_empty());
                None
            }),
            Engine::Postgres => {
                postgres::PostgresOptions::from_url(&url).map(|options| Some(format!("{options:?}")))
            }
            Engine::Redis => redis::RedisOptions::from_url(&url).map(|options| Some(format!("{options:?}"))),
            Engine::DynamoDb => {
                dynamodb::DynamoDbOptions::from_url(&url).map(|options| Some(format!("{options:?}")))
            }
            Engine::Http => http::HttpOptions::from_url(&url).map(|options| Some(format!("{options:?}"))),
            Engine::Github => github::GithubOptions::from_url(&url).map(|_| None),
        };
        match options {
            Ok(options) => {
                // A '/' ends the login for the drivers: what follows is then no password.
                let rest = text.split_once(':').map_or("", |(_, rest)| rest.trim_start_matches('/'));
                if rest.rsplit_once('@').is_none_or(|(login, _)| !login.contains('/')) {
                    shows_no_secret(&text, &options.clone().unwrap_or_default());
                }
                Shape::of(&(url.scheme, options.map(|text| Shape::of_text(&text))))
            }
            Err(error) => refused(&text, &error),
        }
    });
}

fn refused(text: &str, error: &Error) -> Shape {
    assert_eq!(error.code(), "STORE_MISCONFIGURED", "{error}");
    assert!(error.hint().is_some_and(|hint| !hint.is_empty()), "{error} has no hint");
    shows_no_secret(text, error);
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.for_each(|cause| shows_no_secret(text, &cause));
    shows_no_secret(text, &error.hint().unwrap_or_default());
    Shape::of_text(error)
}

/// Checks that a text for people does not contain the secret, if it is one where it is in the URL.
fn shows_no_secret(url: &str, shown: &(impl Display + ?Sized)) {
    if has_secret(url) {
        assert!(!shown.to_string().contains(SECRET), "'{url}' is shown as '{shown}'");
    }
}

/// Whether the secret is the password before the host, the token of a server, or the value of a setting
/// for secrets, and nothing else.
fn has_secret(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once(':') else { return false };
    let scheme = scheme.to_ascii_lowercase();
    let is_token = matches!(scheme.as_str(), "http" | "https");
    let has_login = is_token || scheme.starts_with("postgres") || scheme.starts_with("redis");
    let Some(((before, after), true)) = rest.rsplit_once('@').map(|parts| (parts, has_login)) else {
        return false;
    };
    let who = before.strip_prefix("//").unwrap_or(before);
    let password = if is_token { Some(who) } else { who.split_once(':').map(|(_, password)| password) };
    let elsewhere = if is_token {
        after.to_owned()
    } else {
        format!("{}{after}", who.split(':').next().unwrap_or_default())
    };
    password.is_some_and(|password| password.contains(SECRET)) && !elsewhere.contains(SECRET)
}
