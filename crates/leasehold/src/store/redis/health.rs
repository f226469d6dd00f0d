//! Health checks of the server: its version and setup, and settings that would break a guarantee.

use redis::{Cmd, RedisError, Value};

use super::locks::Locks;
use super::options::{RedisOptions, Topology};
use crate::Result;
use crate::error::{Error, StoreErrorKind};
use crate::store::HealthCheck;
use crate::store::connect::is_this_machine;

/// Oldest server version that supports all features that the scripts need.
const OLDEST: (u32, u32) = (6, 2);

/// Returns all health checks, for display.
pub(super) async fn check_health(locks: &Locks, options: &RedisOptions) -> Result<Vec<HealthCheck>> {
    let mut findings = vec![HealthCheck::ok("address", shape(options))];
    findings.extend(encryption(options));
    findings.extend(settings(locks, options).await?);
    if options.topology == Topology::Cluster {
        findings.push(cluster(locks).await?);
    }
    Ok(findings)
}

/// Returns the checks that decide whether guarantees hold; for a Cluster the worst result of all
/// nodes.
pub(super) async fn settings(locks: &Locks, options: &RedisOptions) -> Result<Vec<HealthCheck>> {
    let nodes = match locks.link.send((&cmd("INFO", &[])).into()).await {
        Err(error) if is_hidden(&error) => {
            return Ok(vec![HealthCheck::ok("settings", "this user may not look at them (INFO)")]);
        }
        reply => infos(reply.map_err(|error| locks.explain(error))?, locks)?,
    };
    let mut worst: Vec<HealthCheck> = Vec::new();
    for info in nodes {
        let mut findings = vec![version(&info, locks)?, eviction(&info), persistence(&info, locks).await];
        if options.topology != Topology::Cluster {
            findings.push(role(&info));
        }
        if options.wait_replicas > 0 {
            findings.push(replicas(&info, options.wait_replicas));
        }
        for finding in findings {
            match worst.iter_mut().find(|known| known.name == finding.name) {
                None => worst.push(finding),
                Some(known) if known.concern.is_none() => *known = finding,
                Some(_) => {}
            }
        }
    }
    Ok(worst)
}

/// Whether the server withholds this information from the user, as opposed to refusing access
/// altogether.
fn is_hidden(error: &RedisError) -> bool {
    match error.code() {
        Some("NOPERM") => true,
        Some("ERR") => error.detail().is_some_and(|detail| detail.contains("unknown command")),
        _ => false,
    }
}

/// Parses the reply of `INFO`; a Cluster returns one reply per node.
fn infos(reply: Value, locks: &Locks) -> Result<Vec<Info>> {
    let text =
        |value: Value| redis::from_redis_value(value).map(Info).map_err(|error| locks.explain(error.into()));
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
        "off: the password and all that is sent can be read on the network"
    } else {
        "off: all that is sent can be read and changed on the network"
    };
    let hint = "write rediss: instead of redis:, with ?ca=PATH for a CA of your own";
    Some(HealthCheck::concern("encryption", detail, "REDIS_NOT_ENCRYPTED", hint))
}

fn shape(options: &RedisOptions) -> String {
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
        return Ok(HealthCheck::ok("version", "the server does not tell"));
    };
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if (major, minor) < OLDEST {
        let message = format!("the store {} is Redis {version}; locks need 6.2 or newer", locks.shown);
        return Err(Error::store(StoreErrorKind::Misconfigured, message, "use a newer server"));
    }
    let name = info.get("server_name").unwrap_or("redis");
    Ok(HealthCheck::ok("version", format!("{name} {version}")))
}

fn role(info: &Info) -> HealthCheck {
    match info.get("role") {
        Some("master") | None => HealthCheck::ok("role", "master"),
        Some(role) => HealthCheck::concern(
            "role",
            format!("this server is a {role}: it takes no locks"),
            "REDIS_REPLICA",
            "connect to the master; with Sentinel write redis+sentinel://, with a Cluster redis+cluster://",
        ),
    }
}

fn eviction(info: &Info) -> HealthCheck {
    match (info.get("maxmemory"), info.get("maxmemory_policy")) {
        (_, None) => HealthCheck::ok("eviction", "the server does not tell"),
        (_, Some("noeviction")) => HealthCheck::ok("eviction", "noeviction"),
        (Some("0"), Some(policy)) => {
            HealthCheck::ok("eviction", format!("{policy}, but without a limit of memory nothing is evicted"))
        }
        (_, Some(policy)) => HealthCheck::concern(
            "eviction",
            format!("maxmemory-policy is {policy}: a lock that is held may be thrown away"),
            "REDIS_EVICTION",
            "set maxmemory-policy noeviction, or use a server of its own for locks",
        ),
    }
}

async fn persistence(info: &Info, locks: &Locks) -> HealthCheck {
    match info.get("aof_enabled") {
        None => return HealthCheck::ok("persistence", "the server does not tell"),
        Some("1") => {}
        Some(_) => {
            return HealthCheck::concern(
                "persistence",
                "no AOF: a restart of the server frees locks that are held and forgets all tasks",
                "REDIS_NO_AOF",
                "set appendonly yes; without it count on tokens alone",
            );
        }
    }
    let fsync = locks.ask::<Value>(&cmd("CONFIG", &["GET", "appendfsync"])).await;
    let fsync = fsync.ok().and_then(|reply| redis::from_redis_value::<Vec<String>>(reply).ok());
    match fsync.as_ref().and_then(|pair| pair.get(1)).map(String::as_str) {
        Some("no") => HealthCheck::concern(
            "persistence",
            "AOF with appendfsync no: a crash of its machine loses up to half a minute of grants",
            "REDIS_FSYNC",
            "set appendfsync everysec or always",
        ),
        Some(fsync) => HealthCheck::ok("persistence", format!("AOF, appendfsync {fsync}")),
        None => {
            HealthCheck::ok("persistence", "AOF; how often it is synced cannot be seen by this user (CONFIG)")
        }
    }
}

fn replicas(info: &Info, wanted: u32) -> HealthCheck {
    let there = info.get("connected_slaves").and_then(|count| count.parse().ok()).unwrap_or(0);
    if there >= wanted {
        return HealthCheck::ok("replicas", format!("{there}, and {wanted} have to acknowledge a grant"));
    }
    HealthCheck::concern(
        "replicas",
        format!("{there} are there, but {wanted} have to acknowledge a grant: no lock can be had"),
        "REDIS_REPLICAS",
        "connect more replicas, or ask for fewer with ?wait_replicas=…",
    )
}

async fn cluster(locks: &Locks) -> Result<HealthCheck> {
    let info = match locks.link.send((&cmd("CLUSTER", &["INFO"])).into()).await {
        Err(error) if is_hidden(&error) => {
            return Ok(HealthCheck::ok("cluster", "this user may not look at it (CLUSTER INFO)"));
        }
        reply => infos(reply.map_err(|error| locks.explain(error))?, locks)?,
    };
    let Some(info) = info.first() else {
        return Ok(HealthCheck::ok("cluster", "it does not tell"));
    };
    let (state, slots) =
        (info.get("cluster_state").unwrap_or("?"), info.get("cluster_slots_ok").unwrap_or("?"));
    let detail = format!("state {state}, {slots} of 16384 slots in order");
    Ok(match state {
        "ok" => HealthCheck::ok("cluster", detail),
        _ => HealthCheck::concern(
            "cluster",
            detail,
            "REDIS_CLUSTER_DOWN",
            "look at CLUSTER NODES: a master without a replica is down, or slots belong to nobody",
        ),
    })
}

fn cmd(name: &str, words: &[&str]) -> Cmd {
    let mut cmd = redis::cmd(name);
    for word in words {
        cmd.arg(word);
    }
    cmd
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreUrl;

    #[test]
    fn a_password_that_others_can_read_is_a_concern() {
        let found = |url: &str| {
            let options = RedisOptions::from_url(&StoreUrl::parse(url).unwrap()).unwrap();
            encryption(&options)
                .map(|finding| (finding.detail.contains("password"), finding.concern.unwrap().code))
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
