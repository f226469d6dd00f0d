//! A Redis with one replica, and one Sentinel that alone decides when the replica takes over.

use std::fs;
use std::process::Command;

use anyhow::Result;

use super::lab::{Lab, free_ports};
use super::redis::{ask, node};

const SERVICE: &str = "leasehold";

pub(super) fn start(lab: &mut Lab) -> Result<()> {
    let [master, replica, port] = free_ports()?;
    let of = format!("127.0.0.1 {master}");
    // It waits neither for more replicas before it serves one, nor for its replica when it ends.
    let impatient = ["--repl-diskless-sync-delay", "0", "--shutdown-timeout", "0"];
    let server = node(lab, "redis-master", master, &impatient)?;
    // With a log of its own it would first have to finish writing what it got, and until then would not end.
    node(lab, "redis-replica", replica, &["--replicaof", &of, "--appendonly", "no"])?;
    server.until("got its replica", || {
        ask(master, "INFO replication").is_ok_and(|info| info.contains("state=online"))
    })?;

    let folder = lab.folder("redis-sentinel")?;
    // Sentinel writes what it learns into its settings.
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
    let mut command = Command::new(lab.programs.redis()?);
    command.arg(&settings).arg("--sentinel").current_dir(&folder);
    let server = lab.spawn("redis-sentinel", &mut command)?;
    server.until("found the replica", || {
        ask(port, "INFO sentinel").is_ok_and(|info| info.contains("status=ok") && info.contains("slaves=1"))
    })?;
    lab.export("LEASEHOLD_TEST_REDIS_SENTINEL", format!("redis+sentinel://127.0.0.1:{port}/{SERVICE}"));
    Ok(())
}
