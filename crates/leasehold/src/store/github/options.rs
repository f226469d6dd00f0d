//! Options of the engine, parsed from the store URL.

use std::time::Duration;

use super::api::{App, Auth};
use crate::Result;
use crate::model::{QueueName, Ttl};
use crate::store::server_clock::Judge;
use crate::store::support::url::store_url::{is_plain_address, is_this_machine};
use crate::store::support::url::url_options::UrlOptions;
use crate::store::{Clock, StoreUrl};

/// Maximum time in which a posted candidate has to become a lease.
pub(crate) const CANDIDATE_TTL: Ttl = Ttl::from_secs(60);

/// Repository and settings of a GitHub store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GithubOptions {
    /// Owner of the repository.
    pub owner: String,
    /// Name of the repository.
    pub repo: String,
    /// Base URL of the API: `https://api.github.com`, or `https://HOST/api/v3` of GitHub
    /// Enterprise.
    pub api: String,
    /// Label of issues that are locks.
    pub label: String,
    /// Default TTL of a lease.
    pub ttl: Ttl,
    /// Logins, including bots, whose comments count although they do not belong to the repository.
    pub workers: Vec<String>,
    /// Logins of the bots as which this client may act if it has the token of an App: the client
    /// learns its own login only with its first comment. An empty list stands for
    /// `github-actions[bot]`. A client with the App's key receives its login from GitHub.
    pub bots: Vec<String>,
    /// Mechanism that decides which client holds a lock.
    pub arbiter: Arbiter,
    /// Rule that decides when a lease has ended, with [`Arbiter::Ref`].
    pub judge: Judge,
    /// Clock that decides with [`Arbiter::Ref`], for tests.
    #[doc(hidden)]
    pub clock: Option<Clock>,
    /// Whether the store shares no memory with other stores of this process, as if it were on
    /// another machine; for tests.
    #[doc(hidden)]
    pub alone: bool,
    /// Whether the store exposes the documents that contain its locks; for tests.
    #[doc(hidden)]
    pub exposes_documents: bool,
    /// Labels that are task queues. The store also knows the labels that it has used.
    pub queues: Vec<QueueName>,
    /// Minimum time between two writes: GitHub asks for one second.
    #[doc(hidden)]
    pub gap: Duration,
    /// Maximum time in which a new issue has to become a task or a lock. Only tests change it: other
    /// clients wait for as long.
    #[doc(hidden)]
    pub candidate_ttl: Duration,
    pub(super) auth: Auth,
    pub(super) url: String,
}

/// Mechanism that decides which client holds a lock. All clients of a repository have to use the
/// same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Arbiter {
    /// Comments of an issue: exclusive locks only, and people can take part.
    Comment,
    /// Git refs, which provide compare-and-set: all kinds of locks, and reads may be arbitrarily
    /// stale.
    Ref,
}

/// Minimum time between two writes that GitHub asks for.
const GAP: Duration = Duration::from_secs(1);
const TTL: Ttl = Ttl::from_secs(15 * 60);
const API: &str = "https://api.github.com";
const LABEL: &str = "leasehold";
const LABEL_RULE: &str = "at most 50 bytes without a comma";
/// Settings of a URL; `clock` and `skew` are for `arbiter=ref`. Credentials are in the environment.
const SETTINGS: [&str; 9] = [
    "api=https://HOST/api/v3",
    "label=LABEL",
    "ttl=15m",
    "workers=LOGIN,LOGIN",
    "bots=LOGIN,LOGIN",
    "queues=LABEL,LABEL",
    "arbiter=comment|ref",
    "clock=date|watch",
    "skew=30s",
];

impl GithubOptions {
    /// Parses `github://OWNER/REPO?label=…`. Reads the credentials from the environment.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        let given = UrlOptions::parse(url, "a GitHub store", &SETTINGS)?;
        let path = url.location().trim_end_matches('/');
        let Some((owner, repo)) =
            path.split_once('/').filter(|(owner, repo)| is_name(owner) && is_name(repo))
        else {
            return Err(given.error("the store URL names no repository: it must be github://OWNER/REPO"));
        };
        let arbiters = [("comment", Arbiter::Comment), ("ref", Arbiter::Ref)];
        let arbiter = given.choice("arbiter", &arbiters)?.unwrap_or(Arbiter::Comment);
        let queues: Result<_, _> = given.list("queues")?.into_iter().map(QueueName::new).collect();
        let ttl = given.duration("ttl", Duration::ZERO)?.map(Ttl::new).transpose();
        Ok(Self {
            owner: owner.to_owned(),
            repo: repo.to_owned(),
            api: api(&given)?,
            label: given.parsed("label", LABEL_RULE, label)?.unwrap_or_else(|| LABEL.to_owned()),
            ttl: ttl.map_err(|error| given.error(error.to_string()))?.unwrap_or(TTL),
            workers: given.list("workers")?,
            bots: given.list("bots")?,
            arbiter,
            judge: judge(&given, arbiter)?,
            clock: None,
            alone: false,
            exposes_documents: false,
            queues: queues.map_err(|error| given.error(error.to_string()))?,
            gap: GAP,
            candidate_ttl: CANDIDATE_TTL.as_duration(),
            auth: Auth::from_env()?,
            url: url.to_string(),
        })
    }

    /// Uses this token instead of the credentials from the environment.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<String>) -> Self {
        self.auth = Auth::Token(token.into());
        self
    }

    /// Authenticates as a GitHub App, by its private key in PEM, instead of with the credentials
    /// from the environment.
    pub fn with_app(
        mut self,
        id: impl Into<String>,
        installation: impl Into<String>,
        pem: &str,
    ) -> Result<Self> {
        self.auth = Auth::App(App::new(id.into(), installation.into(), pem)?);
        Ok(self)
    }
}

fn api(given: &UrlOptions<'_>) -> Result<String> {
    match given.text("api")? {
        None => Ok(API.to_owned()),
        Some(api) if !is_plain_address(&api) => {
            Err(given.error("invalid api: must be https://HOST/api/v3, without a user"))
        }
        Some(api) if !is_confidential(&api) => {
            Err(given.error("api without TLS would expose the token to the network: use https://"))
        }
        Some(api) => Ok(api.trim_end_matches('/').to_owned()),
    }
}

fn label(text: &str) -> Option<String> {
    (text.len() <= 50 && !text.contains(',')).then(|| text.to_owned())
}

fn judge(given: &UrlOptions<'_>, arbiter: Arbiter) -> Result<Judge> {
    let words = [("date", Judge::default()), ("watch", Judge::Watch)];
    let judge = match (arbiter, given.choice("clock", &words)?) {
        (Arbiter::Comment, Some(_)) => return Err(given.error("clock requires arbiter=ref")),
        (Arbiter::Comment, None) => Judge::Watch,
        (Arbiter::Ref, judge) => judge.unwrap_or_default(),
    };
    match (judge, given.duration("skew", Duration::ZERO)?) {
        (Judge::Date { .. }, Some(skew)) => Ok(Judge::Date { skew }),
        (Judge::Watch, Some(_)) => Err(given.error("skew requires arbiter=ref with clock=date")),
        (judge, None) => Ok(judge),
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) && text != ".."
}

/// Whether requests are secret: sent with TLS, or within this machine.
fn is_confidential(api: &str) -> bool {
    let Some(path) = api.strip_prefix("http://") else { return true };
    let authority = path.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    is_this_machine(host)
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
    fn the_arbiter_and_the_expiry_rule_are_settings() {
        let given = |settings: &str| {
            let given = options(&format!("github://ada/engine{settings}")).unwrap();
            (given.arbiter, given.judge)
        };
        assert_eq!(given(""), (Arbiter::Comment, Judge::Watch));
        assert_eq!(given("?arbiter=ref"), (Arbiter::Ref, Judge::default()));
        assert_eq!(given("?arbiter=ref&clock=watch"), (Arbiter::Ref, Judge::Watch));
        assert_eq!(given("?clock=date&arbiter=ref"), (Arbiter::Ref, Judge::default()));
        let five = Judge::Date { skew: Duration::from_secs(5) };
        assert_eq!(given("?arbiter=ref&skew=5s&clock=date"), (Arbiter::Ref, five));
    }

    #[test]
    fn invalid_settings_are_refused_without_showing_their_values() {
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
            "github://ada/engine?label=a&label=b",
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
    fn debug_output_hides_the_token() {
        let options = options("github://ada/engine").unwrap().with_token("s3cr3t");
        assert!(!format!("{options:?}").contains("s3cr3t"));
    }
}
