//! Redis with one replica, and one Sentinel that decides when the replica takes over.

use std::fs;
use std::process::Command;

use anyhow::Result;

use super::environment::{Environment, free_ports};
use super::redis::{node, send};

const SERVICE: &str = "leasehold";

pub(super) fn start(env: &mut Environment) -> Result<()> {
    let [master, replica, port] = free_ports()?;
    let master_address = format!("127.0.0.1 {master}");
    // The master waits neither for more replicas before a sync, nor for its replica at shutdown.
    let no_delays = ["--repl-diskless-sync-delay", "0", "--shutdown-timeout", "0"];
    let server = node(env, "redis-master", master, &no_delays)?;
    // With an append-only file, the replica would finish writing it before it stops.
    node(env, "redis-replica", replica, &["--replicaof", &master_address, "--appendonly", "no"])?;
    server.wait_until("got its replica", || {
        send(master, "INFO replication").is_ok_and(|info| info.contains("state=online"))
    })?;

    let folder = env.folder("redis-sentinel")?;
    // Sentinel writes its state into its configuration file.
    let settings = folder.join("sentinel.conf");
    fs::write(
        &settings,
        format!(
            "port {port}\n\
             bind 127.0.0.1\n\
             dir {}\n\
             sentinel monitor {SERVICE} 127.0.0.1 {master} 1\n\
             sentinel down-after-milliseconds {SERVICE} 1000\n\
             sentinel failover-timeout {SERVICE} 5000\n",
            folder.display()
        ),
    )?;
    let mut command = Command::new(env.programs.redis()?);
    command.arg(&settings).arg("--sentinel").current_dir(&folder);
    let server = env.spawn("redis-sentinel", &mut command)?;
    server.wait_until("found the replica", || {
        send(port, "INFO sentinel").is_ok_and(|info| info.contains("status=ok") && info.contains("slaves=1"))
    })?;
    env.export("LEASEHOLD_TEST_REDIS_SENTINEL", format!("redis+sentinel://127.0.0.1:{port}/{SERVICE}"));
    Ok(())
}
