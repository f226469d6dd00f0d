//! Maps Redis errors to store errors.

use redis::{ErrorKind, RedisError};

use crate::error::{Error, StoreErrorKind};

/// Converts a Redis error into a store error that names the store, the problem and the remedy.
pub(super) fn explain(url: &str, error: RedisError) -> Error {
    let is_cluster = url.split(':').next().is_some_and(|scheme| scheme.ends_with("+cluster"));
    let (kind, problem, hint) = match error.code() {
        // The client of a Cluster follows these, and gives up if the slots move for longer.
        Some("MOVED" | "ASK") if is_cluster => MOVING_SLOTS,
        _ => describe(&error),
    };
    Error::store(kind, format!("the store {url} {problem}"), hint).because(error)
}

/// Returns the error of a call without an answer before its deadline.
pub(super) fn timed_out(url: &str) -> Error {
    explain(url, std::io::Error::from(std::io::ErrorKind::TimedOut).into())
}

/// Returns the error for a service that the Sentinels do not know.
pub(super) fn unknown_service(url: &str) -> Error {
    Error::store(
        StoreErrorKind::Misconfigured,
        format!("the store {url} names a service that is unknown to the Sentinels"),
        "write the name of the service after the address: redis+sentinel://HOST:PORT/SERVICE",
    )
}

/// Returns the error for stored data that cannot be decoded.
pub(super) fn unreadable(data: &str) -> Error {
    let hint =
        "it may be written by a newer leasehold or by another program: use another ?prefix=…, or remove it";
    Error::store(StoreErrorKind::Broken, format!("{data} in Redis cannot be read"), hint)
}

fn describe(error: &RedisError) -> (StoreErrorKind, &'static str, &'static str) {
    if let Some(code) = error.code()
        && let Some(described) = describe_code(code, error.detail().unwrap_or_default())
    {
        return described;
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => WRONG_CREDENTIALS,
        ErrorKind::MasterNameNotFoundBySentinel => (
            StoreErrorKind::Unavailable,
            "has no master at the moment",
            "retry: a failover takes some seconds",
        ),
        ErrorKind::InvalidClientConfig | ErrorKind::EmptySentinelList | ErrorKind::RESP3NotSupported => (
            StoreErrorKind::Misconfigured,
            "cannot be used with these settings",
            "see the cause below and docs/engines/redis.md",
        ),
        _ if is_about_tls(error) => (
            StoreErrorKind::Misconfigured,
            "failed the TLS handshake or has an untrusted certificate",
            "set the right CA with ?ca=PATH and the host name of the certificate, or write redis: for a server without TLS",
        ),
        _ if error.is_timeout() => {
            let hint = "retry; the server may be overloaded or unreachable, or may have no TLS on that port";
            (StoreErrorKind::Unavailable, "did not answer in time", hint)
        }
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => (
            StoreErrorKind::Unavailable,
            "cannot be reached",
            "check that the server is running, and the host, the port and the network",
        ),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => (
            StoreErrorKind::Misconfigured,
            "does not answer like Redis",
            "the server may be another program, or may require TLS: then write rediss:",
        ),
        _ => (StoreErrorKind::Broken, "failed unexpectedly", "please report this with the cause below"),
    }
}

const WRONG_CREDENTIALS: (StoreErrorKind, &str, &str) = (
    StoreErrorKind::NotPermitted,
    "rejected the user or the password",
    "write both into the URL: redis://USER:PASSWORD@HOST",
);

fn describe_code(code: &str, detail: &str) -> Option<(StoreErrorKind, &'static str, &'static str)> {
    Some(match code {
        "NOAUTH" | "WRONGPASS" => WRONG_CREDENTIALS,
        "NOPERM" => (
            StoreErrorKind::NotPermitted,
            "denies this user a command, key or channel that leasehold needs",
            "docs/engines/redis.md has the ACL line with the required permissions",
        ),
        "DENIED" => (
            StoreErrorKind::NotPermitted,
            "rejects connections from other machines (protected mode)",
            "set a password on the server, or connect from its machine",
        ),
        "READONLY" => (
            StoreErrorKind::Unavailable,
            "is a read-only replica",
            "connect to the master; with Sentinel write redis+sentinel://, with a Cluster redis+cluster://",
        ),
        "MISCONF" => (
            StoreErrorKind::Unavailable,
            "rejects writes: it could not save its data",
            "check the log and the disk of the server (MISCONF)",
        ),
        "OOM" => (
            StoreErrorKind::Unavailable,
            "has reached its memory limit",
            "raise maxmemory, or remove other data; keep maxmemory-policy noeviction",
        ),
        "LOADING" => (StoreErrorKind::Unavailable, "is still loading its data", "retry in a moment"),
        "BUSY" => {
            (StoreErrorKind::Unavailable, "is busy with a script of another client", "retry in a moment")
        }
        "CLUSTERDOWN" | "TRYAGAIN" | "MASTERDOWN" => MOVING_SLOTS,
        // The answer to WAIT, if the server becomes a replica meanwhile.
        "UNBLOCKED" => (
            StoreErrorKind::Unavailable,
            "has become a replica during the call",
            "retry: a failover takes some seconds",
        ),
        "MOVED" | "ASK" | "CROSSSLOT" => {
            (StoreErrorKind::Misconfigured, "is part of a Cluster", "write redis+cluster://HOST:PORT")
        }
        "NOREPLICAS" => (
            StoreErrorKind::Unavailable,
            "has too few replicas to accept writes",
            "check its replicas and min-replicas-to-write",
        ),
        "WRONGTYPE" => FOREIGN,
        "LEASEHOLD" => (
            StoreErrorKind::Misconfigured,
            "has records in an unknown format",
            "use the newest leasehold everywhere, or another ?prefix=…",
        ),
        "ERR" if detail.contains("LEASEHOLD") => return describe_code("LEASEHOLD", ""),
        "ERR" if detail.contains(WAIT_ON_REPLICA) => return describe_code("READONLY", ""),
        // Before Redis 7 an error within a script has its own code inside the text.
        "ERR" if detail.contains("WRONGTYPE") || detail.contains("too short") => FOREIGN,
        "ERR" if detail.contains("OOM command not allowed") => return describe_code("OOM", ""),
        "ERR" if detail.contains("READONLY") => return describe_code("READONLY", ""),
        "ERR" if detail.contains("MISCONF") => return describe_code("MISCONF", ""),
        // Errors of a Cluster within a script have no code of their own in any version.
        "ERR" if detail.contains("non local key") || detail.contains("cluster is down") => MOVING_SLOTS,
        "ERR" if detail.contains("can't access") || detail.contains("NOPERM") => {
            return describe_code("NOPERM", "");
        }
        "ERR" if detail.contains("DB index") => (
            StoreErrorKind::Misconfigured,
            "has no database with this number",
            "write the number at the end of the URL: redis://HOST/0",
        ),
        "ERR" if detail.contains("max number of clients") => {
            (StoreErrorKind::Unavailable, "has reached its limit of clients", "raise maxclients")
        }
        "ERR" if detail.contains("unknown command") => (
            StoreErrorKind::Misconfigured,
            "does not support a command that leasehold needs",
            "use Redis 6.2 or newer, or a compatible server with scripts and streams",
        ),
        _ => return None,
    })
}

/// Answer of a replica to `WAIT`, after a script that has written nothing.
const WAIT_ON_REPLICA: &str = "WAIT cannot be used with replica";

/// Whether the server has answered as a replica: it refuses writes and `WAIT`.
pub(super) fn is_from_replica(error: &RedisError) -> bool {
    let mentions = |text: &str| error.detail().is_some_and(|detail| detail.contains(text));
    match error.code() {
        Some("READONLY" | "MASTERDOWN" | "UNBLOCKED") => true,
        Some("ERR") => mentions("READONLY") || mentions(WAIT_ON_REPLICA),
        _ => false,
    }
}

const MOVING_SLOTS: (StoreErrorKind, &str, &str) = (
    StoreErrorKind::Unavailable,
    "has a node that is down, or slots that are migrating",
    "retry; check CLUSTER INFO",
);

const FOREIGN: (StoreErrorKind, &str, &str) = (
    StoreErrorKind::Misconfigured,
    "has a foreign value at a key of leasehold",
    "another program uses the same keys: choose others with ?prefix=…",
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

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    /// Returns the error for this answer of the server.
    fn answer(text: &str) -> RedisError {
        let reply = redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
        reply.and_then(Value::extract_error).unwrap_err()
    }

    /// A lease is lost after two errors that are not transient.
    #[test]
    fn transient_errors_within_a_call_mean_that_the_store_is_unavailable() {
        for text in [
            "ERR Error running script (call to f_5c1b): @user_script:12: -MISCONF Redis is configured to save RDB snapshots",
            "ERR Script attempted to access a non local key in a cluster node script: 5c1b, on @user_script:30.",
            "ERR Script attempted to execute a command while the cluster is down script: 5c1b, on @user_script:30.",
            "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
            "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica",
        ] {
            assert_eq!(describe(&answer(text)).0, StoreErrorKind::Unavailable, "{text}");
        }
    }

    #[test]
    fn a_replica_is_recognized_by_its_answers() {
        for text in [
            "READONLY You can't write against a read only replica.",
            "ERR Error running script (call to f_5c1b): @user_script:12: -READONLY You can't write against a read only replica.",
            "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica",
            "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        ] {
            assert!(is_from_replica(&answer(text)), "{text}");
        }
        for text in ["ERR syntax error", "LOADING Redis is loading the dataset in memory"] {
            assert!(!is_from_replica(&answer(text)), "{text}");
        }
    }

    #[test]
    fn a_redirection_is_transient_only_for_a_client_of_a_cluster() {
        for text in ["MOVED 3999 127.0.0.1:6381", "ASK 3999 127.0.0.1:6381"] {
            let code = |url| explain(url, answer(text)).code();
            assert_eq!(code("rediss+cluster://127.0.0.1:6380"), "STORE_UNAVAILABLE");
            assert_eq!(code("redis://127.0.0.1:6380"), "STORE_MISCONFIGURED");
        }
    }
}
