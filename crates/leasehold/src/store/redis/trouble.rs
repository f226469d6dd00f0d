//! Maps Redis errors to store errors.

use redis::{ErrorKind, RedisError};

use crate::error::{Error, StoreErrorKind};

/// Converts a Redis error into a store error that names the store, the problem and the remedy.
pub(super) fn explain(at: &str, error: RedisError) -> Error {
    let (trouble, what, hint) = describe(&error);
    Error::store(trouble, format!("the store {at} {what}"), hint).because(error)
}

/// Returns the error of a call without an answer before its deadline.
pub(super) fn late(at: &str) -> Error {
    explain(at, std::io::Error::from(std::io::ErrorKind::TimedOut).into())
}

/// Returns the error for a service that the Sentinels do not know.
pub(super) fn unknown_service(at: &str) -> Error {
    Error::store(
        StoreErrorKind::Misconfigured,
        format!("the store {at} names a service that the Sentinels do not know"),
        "write its name after the address: redis+sentinel://HOST:PORT/SERVICE",
    )
}

fn describe(error: &RedisError) -> (StoreErrorKind, &'static str, &'static str) {
    if let Some(code) = error.code()
        && let Some(described) = describe_code(code, error.detail().unwrap_or_default())
    {
        return described;
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => NOT_LET_IN,
        ErrorKind::MasterNameNotFoundBySentinel => (
            StoreErrorKind::Unavailable,
            "has no master at the moment",
            "try again: a failover takes some seconds",
        ),
        ErrorKind::InvalidClientConfig | ErrorKind::EmptySentinelList | ErrorKind::RESP3NotSupported => (
            StoreErrorKind::Misconfigured,
            "cannot be used with these settings",
            "look at the cause below and at docs/engines/redis.md",
        ),
        _ if is_about_tls(error) => (
            StoreErrorKind::Misconfigured,
            "does not speak TLS that can be trusted",
            "name the right CA with ?ca=PATH and the host as in its certificate, or write redis: if it has no TLS",
        ),
        _ if error.is_timeout() => {
            let hint =
                "try again; is the server overloaded, or cut off, or does it speak no TLS on that port?";
            (StoreErrorKind::Unavailable, "did not answer in time", hint)
        }
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => (
            StoreErrorKind::Unavailable,
            "cannot be reached",
            "is it running there, and is the way to it open?",
        ),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => (
            StoreErrorKind::Misconfigured,
            "does not answer like Redis",
            "is it another program, or does it want TLS? then write rediss:",
        ),
        _ => (StoreErrorKind::Broken, "did what it must not do", "please report this with the cause below"),
    }
}

const NOT_LET_IN: (StoreErrorKind, &str, &str) = (
    StoreErrorKind::NotPermitted,
    "does not let us in: wrong user or password",
    "write them into the URL as redis://USER:PASSWORD@HOST",
);

fn describe_code(code: &str, detail: &str) -> Option<(StoreErrorKind, &'static str, &'static str)> {
    Some(match code {
        "NOAUTH" | "WRONGPASS" => NOT_LET_IN,
        "NOPERM" => (
            StoreErrorKind::NotPermitted,
            "does not let this user do what locks need",
            "docs/engines/redis.md has the ACL line that gives just enough",
        ),
        "DENIED" => (
            StoreErrorKind::NotPermitted,
            "takes no connections from elsewhere (protected mode)",
            "give it a password, or connect from its own machine",
        ),
        "READONLY" => (
            StoreErrorKind::Unavailable,
            "is a replica and cannot be written to",
            "connect to the master; with Sentinel write redis+sentinel://, with a Cluster redis+cluster://",
        ),
        "MISCONF" => (
            StoreErrorKind::Unavailable,
            "takes no writes: it could not save its data",
            "look at its log and its disk (MISCONF)",
        ),
        "OOM" => (
            StoreErrorKind::Unavailable,
            "has no memory left to write",
            "raise maxmemory, or remove what else is stored there; keep maxmemory-policy noeviction",
        ),
        "LOADING" => (StoreErrorKind::Unavailable, "is still loading its data", "try again in a moment"),
        "BUSY" => {
            (StoreErrorKind::Unavailable, "is busy with a script of another client", "try again in a moment")
        }
        "CLUSTERDOWN" | "TRYAGAIN" | "MASTERDOWN" => (
            StoreErrorKind::Unavailable,
            "has a part that is down or moving",
            "try again; look at CLUSTER INFO",
        ),
        "MOVED" | "ASK" | "CROSSSLOT" => {
            (StoreErrorKind::Misconfigured, "is part of a Cluster", "write redis+cluster://HOST:PORT")
        }
        "NOREPLICAS" => (
            StoreErrorKind::Unavailable,
            "has too few replicas to take writes",
            "look at its replicas, or at min-replicas-to-write",
        ),
        "WRONGTYPE" => FOREIGN,
        "LEASEHOLD" => (
            StoreErrorKind::Misconfigured,
            "has records of another format",
            "use the newest leasehold everywhere, or another ?prefix=…",
        ),
        "ERR" if detail.contains("LEASEHOLD") => return describe_code("LEASEHOLD", ""),
        // Before Redis 7 an error within a script has its own code inside the text.
        "ERR" if detail.contains("WRONGTYPE") || detail.contains("too short") => FOREIGN,
        "ERR" if detail.contains("OOM command not allowed") => return describe_code("OOM", ""),
        "ERR" if detail.contains("READONLY") => return describe_code("READONLY", ""),
        "ERR" if detail.contains("can't access") || detail.contains("NOPERM") => {
            return describe_code("NOPERM", "");
        }
        "ERR" if detail.contains("DB index") => (
            StoreErrorKind::Misconfigured,
            "has no database of that number",
            "the number comes last: redis://HOST/0",
        ),
        "ERR" if detail.contains("max number of clients") => {
            (StoreErrorKind::Unavailable, "has too many clients already", "raise its maxclients")
        }
        "ERR" if detail.contains("unknown command") => (
            StoreErrorKind::Misconfigured,
            "does not know a command that locks need",
            "it has to be Redis 6.2 or newer, or something like it, with scripts and streams",
        ),
        _ => return None,
    })
}

const FOREIGN: (StoreErrorKind, &str, &str) = (
    StoreErrorKind::Misconfigured,
    "has something else where a lock should be",
    "another program uses the same keys: choose other ones with ?prefix=…",
);

/// Whether TLS failed, at any depth of the chain of causes.
fn is_about_tls(error: &RedisError) -> bool {
    type Shared = std::sync::Arc<dyn std::error::Error + Send + Sync>;
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let error = match error.downcast_ref::<Shared>() {
            Some(shared) => &**shared as &(dyn std::error::Error + 'static),
            None => error,
        };
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let is_tls = inner.is_some_and(|inner| inner.downcast_ref::<rustls::Error>().is_some());
        if is_tls || error.is::<rustls::Error>() {
            return true;
        }
        cause = error.source();
    }
    false
}
