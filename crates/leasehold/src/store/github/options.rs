//! From the URL to a repository and its settings.

use std::time::Duration;

use super::auth::{App, Auth};
use crate::error::{Error, Result, Trouble};
use crate::model::{QueueName, Ttl, parse_duration};
use crate::store::connect::{decoded, is_this_machine};
use crate::store::{Clock, StoreUrl};

/// Which repository, and how it is used.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GithubOptions {
    /// Whose it is.
    pub owner: String,
    /// Its name.
    pub repo: String,
    /// Where the API is: `https://api.github.com`, or `https://HOST/api/v3` of GitHub Enterprise.
    pub api: String,
    /// The label of issues that are locks.
    pub label: String,
    /// How long a lease lasts if nobody says otherwise.
    pub ttl: Ttl,
    /// Logins whose comments count although they do not belong to the repository; bots among them.
    pub workers: Vec<String>,
    /// Logins of the bots that this client may be, if it has the token of an App: it learns its own login only with its
    /// first comment. None stands for `github-actions[bot]`. An App with its key is told its login by GitHub.
    pub bots: Vec<String>,
    /// By what it is decided who holds a lock.
    pub arbiter: Arbiter,
    /// By what it is judged that a lease is over, if refs decide.
    pub judge: Judge,
    /// The time to go by if refs decide, for tests.
    #[doc(hidden)]
    pub clock: Option<Clock>,
    /// Shares no memory with other stores of this process, as if on another machine: for tests.
    #[doc(hidden)]
    pub alone: bool,
    /// Shows the documents that locks are made of: for tests.
    #[doc(hidden)]
    pub shows_docs: bool,
    /// Labels that are queues of tasks. Those that are used are known as well.
    pub queues: Vec<QueueName>,
    /// The least time between two writes: GitHub asks for a second.
    #[doc(hidden)]
    pub gap: Duration,
    /// Who asks.
    pub(super) auth: Auth,
    /// For people.
    url: String,
}

/// By what it is decided who holds a lock. All clients of a repository have to agree on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arbiter {
    /// Comments of an issue: exclusive locks, and people can take part.
    Comment,
    /// Git refs, which compare and set: all kinds of locks, and reads may be as old as they like.
    Ref,
}

/// By what it is judged that a lease is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    /// Somebody has seen it unchanged for its whole duration. Needs no clock that anybody agrees on.
    Watch,
    /// Or the `Date` of the service's answers is so far past its end that no two of its clocks can differ by that.
    Date {
        /// How far those clocks may differ, and how long an answer may take.
        skew: Duration,
    },
}

/// An answer that dates a lease may be five seconds old; the rest is for clocks of the service that differ.
const SKEW: Duration = Duration::from_secs(30);
/// GitHub asks for so much time between writes.
const GAP: Duration = Duration::from_secs(1);
const TTL: Ttl = Ttl::from_secs(15 * 60);
const API: &str = "https://api.github.com";
const LABEL: &str = "leasehold";
const KNOWN: &str = "github: knows api=https://HOST/api/v3, label=…, ttl=15m, workers=LOGIN,LOGIN, bots=LOGIN,LOGIN, queues=LABEL,LABEL, arbiter=comment \
                     and arbiter=ref, with it clock=date, skew=30s and clock=watch; the token is in GITHUB_TOKEN or GH_TOKEN";

impl GithubOptions {
    /// `github://OWNER/REPO?label=…`. Who asks is read from the environment.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        let whole = url.expose();
        let rest = whole.split_once(':').map_or("", |(_, rest)| rest);
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let place = place.strip_prefix("//").unwrap_or(place).trim_end_matches('/');
        let (owner, repo) = place
            .split_once('/')
            .filter(|(owner, repo)| is_word(owner) && is_word(repo))
            .ok_or_else(|| wrong("which repository? A GitHub store is github://OWNER/REPO"))?;
        let mut options = Self {
            owner: owner.to_owned(),
            repo: repo.to_owned(),
            api: API.to_owned(),
            label: LABEL.to_owned(),
            ttl: TTL,
            workers: Vec::new(),
            bots: Vec::new(),
            arbiter: Arbiter::Comment,
            judge: Judge::Watch,
            clock: None,
            alone: false,
            shows_docs: false,
            queues: Vec::new(),
            gap: GAP,
            auth: Auth::from_env()?,
            url: url.to_string(),
        };
        let (mut clock, mut skew) = (false, None);
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            match setting.split_once('=') {
                Some(("skew", text)) => {
                    skew = Some(parse_duration(text).map_err(|error| wrong(&error.to_string()))?);
                }
                _ => options.set(setting)?,
            }
            clock |= setting.starts_with("clock=");
        }
        if clock && options.arbiter == Arbiter::Comment {
            return Err(wrong("clock means nothing without arbiter=ref"));
        }
        if !clock && options.arbiter == Arbiter::Ref {
            options.judge = Judge::Date { skew: SKEW };
        }
        match (&mut options.judge, skew) {
            (Judge::Date { skew }, Some(given)) => *skew = given,
            (Judge::Watch, Some(_)) => {
                return Err(wrong("skew means nothing without arbiter=ref, or with clock=watch"));
            }
            (_, None) => {}
        }
        Ok(options)
    }

    /// The same with this token instead of what the environment says.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<String>) -> Self {
        self.auth = Auth::Token(token.into());
        self
    }

    /// The same as a GitHub App, by its private key in PEM, instead of what the environment says.
    pub fn with_app(
        mut self,
        id: impl Into<String>,
        installation: impl Into<String>,
        pem: &str,
    ) -> Result<Self> {
        self.auth = Auth::App(App::new(id.into(), installation.into(), pem)?);
        Ok(self)
    }

    /// Its address for people.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    fn set(&mut self, setting: &str) -> Result<()> {
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        match (name, decoded(value)?.as_str()) {
            ("api", api) if is_address(api) && !is_secret_from_others(api) => {
                return Err(wrong("api without TLS would show the token to the network; write https://"));
            }
            ("api", api) if is_address(api) => api.trim_end_matches('/').clone_into(&mut self.api),
            ("api", _) => return Err(wrong("api is https://HOST/api/v3, without a user in it")),
            ("label", label) if !label.is_empty() && label.len() <= 50 && !label.contains(',') => {
                label.clone_into(&mut self.label);
            }
            ("ttl", ttl) => {
                let ttl = parse_duration(ttl).and_then(Ttl::new);
                self.ttl = ttl.map_err(|error| wrong(&error.to_string()))?;
            }
            ("workers", logins) if !logins.is_empty() => {
                self.workers = logins.split(',').map(str::to_owned).collect();
            }
            ("bots", logins) if !logins.is_empty() => {
                self.bots = logins.split(',').map(str::to_owned).collect();
            }
            ("queues", labels) if !labels.is_empty() => {
                let queues: Result<_, _> = labels.split(',').map(QueueName::new).collect();
                self.queues = queues.map_err(|error| wrong(&error.to_string()))?;
            }
            ("arbiter", "comment") => self.arbiter = Arbiter::Comment,
            ("arbiter", "ref") => self.arbiter = Arbiter::Ref,
            ("arbiter", _) => return Err(wrong("arbiter is comment or ref")),
            ("clock", "watch") => self.judge = Judge::Watch,
            ("clock", "date") => self.judge = Judge::Date { skew: SKEW },
            // Its value may be a secret that somebody took for a setting.
            _ => {
                return Err(wrong(&format!("'{name}' is not a setting of a GitHub store, or not like this")));
            }
        }
        Ok(())
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) && text != ".."
}

/// Without a user in it: this is shown to people.
fn is_address(url: &str) -> bool {
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    host.is_some_and(|host| !host.is_empty() && !host.contains('@'))
}

/// With TLS, or on this machine.
fn is_secret_from_others(api: &str) -> bool {
    let Some(place) = api.strip_prefix("http://") else { return true };
    let authority = place.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    is_this_machine(host)
}

fn wrong(message: &str) -> Error {
    Error::store(Trouble::Misconfigured, message, KNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> Result<GithubOptions> {
        GithubOptions::from_url(&StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_names_a_repository_and_its_settings() {
        let given =
            options("github://ada/engine?api=https://ghe.example/api/v3/&label=the%20locks&ttl=5m").unwrap();
        assert_eq!((given.owner.as_str(), given.repo.as_str()), ("ada", "engine"));
        assert_eq!(given.api, "https://ghe.example/api/v3");
        assert_eq!((given.label.as_str(), given.ttl), ("the locks", Ttl::from_secs(300)));
        let given = options("github:ada/engine?workers=bob,eve").unwrap();
        assert_eq!((given.api.as_str(), given.ttl), (API, TTL));
        assert_eq!(given.workers, ["bob", "eve"]);
        assert_eq!(options("github:a/b?bots=deploy%5Bbot%5D").unwrap().bots, ["deploy[bot]"]);
        for api in ["http://127.0.0.1:1", "http://[::1]:1/api/v3", "http://localhost/api"] {
            assert_eq!(options(&format!("github:a/b?api={api}")).unwrap().api, api);
        }
    }

    #[test]
    fn refs_may_decide_and_the_date_may_judge() {
        let given = |settings: &str| {
            let given = options(&format!("github://ada/engine{settings}")).unwrap();
            (given.arbiter, given.judge)
        };
        assert_eq!(given(""), (Arbiter::Comment, Judge::Watch));
        assert_eq!(given("?arbiter=ref"), (Arbiter::Ref, Judge::Date { skew: SKEW }));
        assert_eq!(given("?arbiter=ref&clock=watch"), (Arbiter::Ref, Judge::Watch));
        assert_eq!(given("?clock=date&arbiter=ref"), (Arbiter::Ref, Judge::Date { skew: SKEW }));
        let five = Judge::Date { skew: Duration::from_secs(5) };
        assert_eq!(given("?arbiter=ref&skew=5s&clock=date"), (Arbiter::Ref, five));
    }

    #[test]
    fn what_cannot_be_is_refused_without_a_word_of_it_that_may_be_secret() {
        for url in [
            "github://",
            "github://ada",
            "github://ada/a/b",
            "github://ada/..",
            "github://ada/engine?api=ghe.example",
            "github://ada/engine?api=https://u:s3cr3t@ghe.example",
            "github://ada/engine?api=http://ghe.example/api/v3",
            "github://ada/engine?api=http://127.0.0.1.ghe.example",
            "github://ada/engine?api=http://localhost@ghe.example",
            "github://ada/engine?token=s3cr3t",
            "github://ada/engine?ttl=soon",
            "github://ada/engine?label=",
            "github://ada/engine?arbiter=coin",
            "github://ada/engine?clock=date",
            "github://ada/engine?arbiter=ref&clock=sun",
            "github://ada/engine?skew=5s",
            "github://ada/engine?arbiter=ref&clock=watch&skew=5s",
            "github://ada/engine?arbiter=ref&clock=date&skew=soon",
        ] {
            let error = options(url).unwrap_err();
            assert_eq!(error.code(), "STORE_MISCONFIGURED", "{url}");
            assert!(!format!("{error} {error:?}").contains("s3cr3t"), "{url}");
        }
    }

    #[test]
    fn nobody_sees_a_token() {
        let options = options("github://ada/engine").unwrap().with_token("s3cr3t");
        assert!(!format!("{options:?}").contains("s3cr3t"));
    }
}
