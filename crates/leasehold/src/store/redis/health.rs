//! Health checks of the server: its version and setup, and settings that would break a guarantee.

use redis::{Cmd, RedisError, Value};

use super::connection::is_refusal;
use super::locks::Locks;
use super::options::{RedisOptions, Topology};
use crate::Result;
use crate::error::{Error, StoreErrorKind};
use crate::store::HealthCheck;
use crate::store::support::url::store_url::is_this_machine;

/// Oldest server version that supports all features that the scripts need.
const OLDEST: (u32, u32) = (6, 2);

pub(super) async fn check_health(locks: &Locks, options: &RedisOptions) -> Result<Vec<HealthCheck>> {
    let mut checks = vec![HealthCheck::ok("address", address(options))];
    checks.extend(encryption(options));
    checks.extend(settings(locks, options).await?);
    if options.topology == Topology::Cluster {
        checks.push(cluster(locks).await?);
    } else {
        checks.extend(late_requests(locks).await?);
    }
    Ok(checks)
}

/// Returns the checks whether guarantees hold; for a Cluster the worst result of all nodes.
pub(super) async fn settings(locks: &Locks, options: &RedisOptions) -> Result<Vec<HealthCheck>> {
    let nodes = match locks.connections.send((&cmd("INFO", &[])).into()).await {
        Err(error) if is_denied(&error) => {
            return Ok(vec![HealthCheck::ok("settings", "not visible to this user (INFO)")]);
        }
        reply => infos(locks.connections.read(reply)?, locks)?,
    };
    let mut worst: Vec<HealthCheck> = Vec::new();
    for info in nodes {
        let mut checks = vec![version(&info, locks)?, eviction(&info), persistence(&info, locks).await];
        if options.topology != Topology::Cluster {
            checks.push(role(&info));
        }
        if options.wait_replicas > 0 {
            checks.push(replicas(&info, options.wait_replicas));
        }
        for check in checks {
            match worst.iter_mut().find(|known| known.name == check.name) {
                None => worst.push(check),
                Some(known) if known.issue.is_none() => *known = check,
                Some(_) => {}
            }
        }
    }
    Ok(worst)
}

/// Whether the server withholds this information from the user, as opposed to refusing access
/// altogether.
fn is_denied(error: &RedisError) -> bool {
    match error.code() {
        Some("NOPERM") => true,
        Some("ERR") => error.detail().is_some_and(|detail| detail.contains("unknown command")),
        _ => false,
    }
}

/// Parses the reply of `INFO`; a Cluster returns one reply per node.
fn infos(reply: Value, locks: &Locks) -> Result<Vec<Info>> {
    let text = |value: Value| locks.connections.read(Ok(value)).map(Info);
    match reply {
        Value::Map(nodes) => nodes.into_iter().map(|(_, info)| text(info)).collect(),
        info => Ok(vec![text(info)?]),
    }
}

/// Reply of `INFO`: lines of `key:value`.
struct Info(String);

impl Info {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.trim_end().strip_prefix(key)?.strip_prefix(':'))
    }
}

/// Checks whether other hosts on the network can read the traffic. Returns `None` with TLS or on
/// this machine: certificates are always verified.
fn encryption(options: &RedisOptions) -> Option<HealthCheck> {
    if options.tls || options.nodes.iter().all(|(host, _)| is_this_machine(host)) {
        return None;
    }
    let secret = options.login.password.is_some() || options.sentinel_login.password.is_some();
    let detail = if secret {
        "off: the password and all traffic can be read on the network"
    } else {
        "off: all traffic can be read and changed on the network"
    };
    let hint = "write rediss: instead of redis:, with ?ca=PATH for a private CA";
    Some(HealthCheck::issue("encryption", detail, "REDIS_NOT_ENCRYPTED", hint))
}

fn address(options: &RedisOptions) -> String {
    let tls = if options.tls { "with TLS" } else { "without TLS" };
    let prefix = &options.prefix;
    match &options.topology {
        Topology::One => format!("one server, {tls}, keys {prefix}:…"),
        Topology::Cluster => format!("a Cluster, {tls}, keys {prefix}:…"),
        Topology::Sentinel(service) => format!("the master of '{service}', {tls}, keys {prefix}:…"),
    }
}

fn version(info: &Info, locks: &Locks) -> Result<HealthCheck> {
    let Some(version) = info.get("redis_version") else {
        return Ok(HealthCheck::ok("version", "not reported by the server"));
    };
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if (major, minor) < OLDEST {
        let message = format!(
            "the store {} is Redis {version}; leasehold needs 6.2 or newer",
            locks.connections.display_url()
        );
        return Err(Error::store(StoreErrorKind::Misconfigured, message, "use a newer server"));
    }
    let name = info.get("server_name").unwrap_or("redis");
    Ok(HealthCheck::ok("version", format!("{name} {version}")))
}

fn role(info: &Info) -> HealthCheck {
    match info.get("role") {
        Some("master") | None => HealthCheck::ok("role", "master"),
        Some(role) => HealthCheck::issue(
            "role",
            format!("this server is a {role}: it accepts no locks"),
            "REDIS_REPLICA",
            "connect to the master; with Sentinel write redis+sentinel://, with a Cluster redis+cluster://",
        ),
    }
}

fn eviction(info: &Info) -> HealthCheck {
    match (info.get("maxmemory"), info.get("maxmemory_policy")) {
        (_, None) => HealthCheck::ok("eviction", "not reported by the server"),
        (_, Some("noeviction")) => HealthCheck::ok("eviction", "noeviction"),
        (Some("0"), Some(policy)) => {
            HealthCheck::ok("eviction", format!("{policy}, but nothing is evicted without a memory limit"))
        }
        (_, Some(policy)) => HealthCheck::issue(
            "eviction",
            format!("maxmemory-policy is {policy}: a held lock may be evicted"),
            "REDIS_EVICTION",
            "set maxmemory-policy noeviction, or use a separate server for leasehold",
        ),
    }
}

async fn persistence(info: &Info, locks: &Locks) -> HealthCheck {
    match info.get("aof_enabled") {
        None => return HealthCheck::ok("persistence", "not reported by the server"),
        Some("1") => {}
        Some(_) => {
            return HealthCheck::issue(
                "persistence",
                "no AOF: a restart of the server frees held locks and loses all tasks",
                "REDIS_NO_AOF",
                "set appendonly yes; without it only tokens protect the data",
            );
        }
    }
    let fsync = locks.connections.query::<Value>(&cmd("CONFIG", &["GET", "appendfsync"])).await;
    let fsync = fsync.ok().and_then(|reply| redis::from_redis_value::<Vec<String>>(reply).ok());
    match fsync.as_ref().and_then(|pair| pair.get(1)).map(String::as_str) {
        Some("no") => HealthCheck::issue(
            "persistence",
            "AOF with appendfsync no: a crash of the machine loses up to half a minute of grants",
            "REDIS_FSYNC",
            "set appendfsync everysec or always",
        ),
        Some(fsync) => HealthCheck::ok("persistence", format!("AOF, appendfsync {fsync}")),
        None => HealthCheck::ok("persistence", "AOF; appendfsync is not visible to this user (CONFIG)"),
    }
}

fn replicas(info: &Info, required: u32) -> HealthCheck {
    let connected = info.get("connected_slaves").and_then(|count| count.parse().ok()).unwrap_or(0);
    if connected >= required {
        return HealthCheck::ok(
            "replicas",
            format!("{connected} connected, {required} must acknowledge a grant"),
        );
    }
    HealthCheck::issue(
        "replicas",
        format!("{connected} connected, but {required} must acknowledge a grant: no lock can be acquired"),
        "REDIS_REPLICAS",
        "connect more replicas, or require fewer with ?wait_replicas=…",
    )
}

/// Checks whether the user may end a connection on the server: a request that is stuck on an abandoned
/// connection could otherwise take effect later. Returns `None` if the user may. On a Cluster, clients end
/// no connections.
async fn late_requests(locks: &Locks) -> Result<Option<HealthCheck>> {
    // No connection has this id and this address, so that none is ended.
    let kill = ["KILL", "ID", "9223372036854775807", "ADDR", "127.0.0.1:0"];
    for arguments in [&["INFO"][..], &kill[..]] {
        match locks.connections.send((&cmd("CLIENT", arguments)).into()).await {
            Err(error) if is_refusal(&error) => {
                let refused = arguments[0];
                return Ok(Some(HealthCheck::issue(
                    "late requests",
                    format!("CLIENT {refused} is refused: a request that arrives late may take a lock"),
                    "REDIS_NO_CLIENT_KILL",
                    "permit the commands to this user: ACL SETUSER … +client|info +client|kill",
                )));
            }
            reply => drop(locks.connections.read::<Value>(reply)?),
        }
    }
    Ok(None)
}

async fn cluster(locks: &Locks) -> Result<HealthCheck> {
    let info = match locks.connections.send((&cmd("CLUSTER", &["INFO"])).into()).await {
        Err(error) if is_denied(&error) => {
            return Ok(HealthCheck::ok("cluster", "not visible to this user (CLUSTER INFO)"));
        }
        reply => infos(locks.connections.read(reply)?, locks)?,
    };
    let Some(info) = info.first() else {
        return Ok(HealthCheck::ok("cluster", "not reported by the server"));
    };
    let (state, slots) =
        (info.get("cluster_state").unwrap_or("?"), info.get("cluster_slots_ok").unwrap_or("?"));
    let detail = format!("state {state}, {slots} of 16384 slots ok");
    Ok(match state {
        "ok" => HealthCheck::ok("cluster", detail),
        _ => HealthCheck::issue(
            "cluster",
            detail,
            "REDIS_CLUSTER_DOWN",
            "check CLUSTER NODES: a master without a replica is down, or slots are not assigned",
        ),
    })
}

fn cmd(name: &str, arguments: &[&str]) -> Cmd {
    let mut cmd = redis::cmd(name);
    for argument in arguments {
        cmd.arg(argument);
    }
    cmd
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreUrl;

    #[test]
    fn a_password_sent_without_tls_is_an_issue() {
        let found = |url: &str| {
            let options = RedisOptions::from_url(&StoreUrl::parse(url).unwrap()).unwrap();
            encryption(&options).map(|check| (check.detail.contains("password"), check.issue.unwrap().code))
        };
        assert_eq!(found("redis://ada:s3cr3t@db"), Some((true, "REDIS_NOT_ENCRYPTED")));
        assert_eq!(found("redis://db"), Some((false, "REDIS_NOT_ENCRYPTED")));
        let sentinel = "redis+sentinel://127.0.0.1/main?nodes=db:1&sentinel_password=s3cr3t";
        assert_eq!(found(sentinel), Some((true, "REDIS_NOT_ENCRYPTED")));
        for url in ["rediss://ada:s3cr3t@db", "redis://ada:s3cr3t@127.0.0.1", "redis://:s3cr3t@localhost:1"] {
            assert_eq!(found(url), None, "{url}");
        }
    }
}
