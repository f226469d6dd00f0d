//! Parses the store URL into servers and settings.

use std::fmt;
use std::path::PathBuf;

use crate::error::{Error, Result, StoreErrorKind};
use crate::store::support::url::url_options::{UrlOptions, decoded};
use crate::store::{Clock, StoreUrl};

/// Servers and settings of a Redis store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RedisOptions {
    /// Topology: one server, a Cluster, or a server that Sentinels watch.
    pub topology: Topology,
    /// Initial servers: host and port.
    pub nodes: Vec<(String, u16)>,
    /// Whether to use TLS.
    pub tls: bool,
    /// PEM file with the certificates to trust; by default those of the system.
    pub ca: Option<PathBuf>,
    /// Credentials for the servers.
    pub login: Login,
    /// Credentials for the Sentinels.
    pub sentinel_login: Login,
    /// Number of the database.
    pub db: u32,
    /// Prefix of all keys and channels.
    pub prefix: String,
    /// Approximate maximum number of events in the history.
    pub max_events: u32,
    /// Number of replicas that must acknowledge a grant before it counts.
    pub wait_replicas: u32,
    /// Clock of the engine, for tests; by default the server's clock.
    #[doc(hidden)]
    pub clock: Option<Clock>,
    pub(super) display_url: String,
}

/// Arrangement of the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Topology {
    /// One server.
    One,
    /// Many servers, each with a part of the keys.
    Cluster,
    /// The server that the Sentinels report as the master of this service.
    Sentinel(String),
}

/// User and password.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Login {
    /// User; `None` is the default user.
    pub user: Option<String>,
    /// Password of the user.
    pub password: Option<String>,
}

/// Hides the password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "***");
        f.debug_struct("Login").field("user", &self.user).field("password", &password).finish()
    }
}

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// Settings of a URL; `nodes`, `sentinel_user` and `sentinel_password` are for a Cluster or Sentinels.
const SETTINGS: [&str; 7] = [
    "prefix=leasehold",
    "ca=PATH",
    "events=100000",
    "wait_replicas=0",
    "nodes=HOST:PORT,HOST:PORT",
    "sentinel_user=USER",
    "sentinel_password=PASSWORD",
];

impl RedisOptions {
    /// Parses `redis[s]://[USER:PASSWORD@]HOST[:PORT][/DB]`,
    /// `redis[s]+cluster://HOST[:PORT]?nodes=HOST:PORT,…` or
    /// `redis[s]+sentinel://HOST[:PORT]/SERVICE[/DB]?nodes=…`.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        url.must_encode_password()?;
        let (scheme, address) = (url.scheme.as_str(), url.location());
        // The password may itself contain an '@': the last one ends it.
        let (login, address) = match address.rsplit_once('@') {
            Some((login, address)) => (parse_login(login)?, address),
            None => (Login::default(), address),
        };
        let (host, path) = address.split_once('/').unwrap_or((address, ""));
        let (topology, db) = match scheme {
            "redis+sentinel" | "rediss+sentinel" => {
                let (service, db) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(misconfigured(
                        "the URL lacks the name of the Sentinels' service",
                        "write redis+sentinel://HOST:26379/SERVICE",
                    ));
                }
                (Topology::Sentinel(decoded(service)?), db)
            }
            "redis+cluster" | "rediss+cluster" => (Topology::Cluster, path),
            _ => (Topology::One, path),
        };
        let port = if matches!(topology, Topology::Sentinel(_)) { SENTINEL_PORT } else { PORT };
        let given = UrlOptions::parse(url, "a Redis store", &SETTINGS)?;
        let tls = scheme.starts_with("rediss");
        if given.contains("ca") && !tls {
            return Err(misconfigured("ca= requires TLS", "write rediss: instead of redis:"));
        }
        if given.contains("nodes") && topology == Topology::One {
            let hint = "write redis+cluster: or redis+sentinel: instead of redis:";
            return Err(misconfigured("nodes= requires a Cluster or Sentinels", hint));
        }
        let mut nodes = vec![parse_node(host, port)?];
        for node in given.list("nodes")? {
            nodes.push(parse_node(&node, port)?);
        }
        let options = Self {
            nodes,
            topology,
            tls,
            ca: given.path("ca")?,
            login,
            sentinel_login: Login {
                user: given.text("sentinel_user")?,
                password: given.text("sentinel_password")?,
            },
            db: parse_db(db)?,
            prefix: given
                .parsed("prefix", "1 to 64 letters, digits and -_.:/", prefix)?
                .unwrap_or_else(|| "leasehold".to_owned()),
            max_events: given.integer("events", 1..=u32::MAX)?.unwrap_or(100_000),
            wait_replicas: given.integer("wait_replicas", 0..=u32::MAX)?.unwrap_or(0),
            clock: None,
            display_url: url.to_string(),
        };
        if options.topology == Topology::Cluster && options.db != 0 {
            return Err(misconfigured(
                "a Redis Cluster has only database 0",
                "omit the number, and use ?prefix=… instead",
            ));
        }
        if options.topology == Topology::Cluster && options.wait_replicas > 0 {
            let message = "wait_replicas is not supported with a Cluster";
            return Err(misconfigured(message, "set min-replicas-to-write on its nodes instead"));
        }
        Ok(options)
    }
}

fn parse_login(login: &str) -> Result<Login> {
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(decoded(password)?)),
        None => (login, None),
    };
    let user = Some(decoded(user)?).filter(|user| !user.is_empty());
    Ok(Login { user, password: password.filter(|password| !password.is_empty()) })
}

fn parse_node(node: &str, default_port: u16) -> Result<(String, u16)> {
    let bad =
        || misconfigured(&format!("invalid address '{node}' of a Redis server"), "write HOST or HOST:PORT");
    let (host, port) = match node.rsplit_once(':') {
        // An IPv6 address without a port also has colons.
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| bad())?),
        _ => (node, default_port),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let host = if host.is_empty() { "127.0.0.1" } else { host };
    if host.contains(|c: char| c.is_whitespace() || c.is_control() || "/?#@".contains(c)) {
        return Err(bad());
    }
    Ok((host.to_owned(), port))
}

fn parse_db(path: &str) -> Result<u32> {
    match path {
        "" => Ok(0),
        number => number.parse().map_err(|_| {
            misconfigured(&format!("invalid database '{number}' of Redis"), "write a number: redis://HOST/0")
        }),
    }
}

/// Returns the prefix if it is valid. It precedes the braces that decide which keys are on one node,
/// so it must not contain braces.
fn prefix(text: &str) -> Option<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
    (text.len() <= 64 && text.chars().all(good)).then(|| text.to_owned())
}

fn misconfigured(message: &str, hint: &str) -> Error {
    Error::store(StoreErrorKind::Misconfigured, message, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> Result<RedisOptions> {
        RedisOptions::from_url(&StoreUrl::parse(url)?)
    }

    #[test]
    fn a_url_names_a_server_and_its_settings() {
        let one = options("rediss://ada:s%40cr@h:7000/3?prefix=a:b&events=500&ca=/etc/ca.pem").unwrap();
        assert_eq!((one.topology, one.tls, one.db), (Topology::One, true, 3));
        assert_eq!(one.nodes, [("h".to_owned(), 7000)]);
        assert_eq!(one.login, Login { user: Some("ada".to_owned()), password: Some("s@cr".to_owned()) });
        assert_eq!((one.prefix.as_str(), one.max_events), ("a:b", 500));
        assert_eq!(options("redis://").unwrap().nodes, [("127.0.0.1".to_owned(), PORT)]);
        assert_eq!(options("redis://[::1]:7/").unwrap().nodes, [("::1".to_owned(), 7)]);
        assert_eq!(options("redis://[::1]").unwrap().nodes, [("::1".to_owned(), PORT)]);
        assert_eq!(options("redis://:p@ss@h").unwrap().login.password.as_deref(), Some("p@ss"));
    }

    #[test]
    fn a_url_names_a_cluster_or_sentinels() {
        let cluster = options("redis+cluster://a:1?nodes=b:2,c").unwrap();
        assert_eq!(cluster.topology, Topology::Cluster);
        assert_eq!(cluster.nodes, [("a".to_owned(), 1), ("b".to_owned(), 2), ("c".to_owned(), PORT)]);
        let sentinel = options("redis+sentinel://a/main/2?nodes=b&sentinel_password=s").unwrap();
        assert_eq!((sentinel.topology, sentinel.db), (Topology::Sentinel("main".to_owned()), 2));
        assert_eq!(sentinel.nodes, [("a".to_owned(), SENTINEL_PORT), ("b".to_owned(), SENTINEL_PORT)]);
        assert_eq!(sentinel.sentinel_login.password.as_deref(), Some("s"));
    }

    #[test]
    fn an_invalid_url_is_refused_without_leaking_secrets() {
        for url in [
            "redis://h:port",
            "redis://h/db",
            "redis://h?prefix=a{b}",
            "redis://h?prefix=",
            "redis://h?nodes=b",
            "redis://h?ca=/x",
            "redis://h?pasword=s3cr3t",
            "redis://h?events=many",
            "redis://h?events=1&events=2",
            "redis+cluster://h/1",
            "redis+cluster://h?wait_replicas=1",
            "redis+sentinel://h",
            "redis://ada:s3cr3t%ff@h",
        ] {
            let error = options(url).unwrap_err();
            assert_eq!(error.code(), "STORE_MISCONFIGURED", "{url}");
            assert!(!format!("{error} {error:?}").contains("s3cr3t"), "{url}");
        }
        let shown = format!("{:?}", options("redis://ada:s3cr3t@h?sentinel_password=s3cr3t").unwrap());
        assert!(!shown.contains("s3cr3t"), "{shown}");
    }
}
