//! Faults of the server under load: crashes, promotions, lost data, full memory and wrong clocks.

use std::time::Duration;

use super::private_server::Server;
use crate::faults::fake_clock::{FakeClock, assert_ahead};
use crate::faults::load::{Load, Loss};
use crate::faults::relay::Relay;
use crate::support::{Sandbox, eventually, run};

fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

/// Kills and restarts the server under load.
fn restart(mut server: Server, loss: Loss) -> crate::faults::load::Verdict {
    let mut load = Load::start(&url(server.port()));
    for _ in 0..2 {
        load.disturb("kill and restart", loss, || {
            server.kill();
            server.up();
        });
    }
    load.assert_fit()
}

#[test]
fn a_killed_and_restarted_server_that_syncs_every_write_loses_nothing() {
    restart(Server::start(&["appendonly yes", "appendfsync always"]), Loss::Nothing);
}

/// While the disk is busy, Redis holds back what it has acknowledged for up to two seconds.
#[test]
fn a_killed_and_restarted_server_that_syncs_every_second_keeps_its_promises() {
    restart(Server::start(&["appendonly yes", "appendfsync everysec"]), Loss::Acknowledged);
}

#[test]
fn a_restarted_server_without_a_file_loses_all_and_tokens_rise() {
    let verdict = restart(Server::start(&["appendonly no"]), Loss::Acknowledged);
    assert!(verdict.missing_tasks() > 0, "{}", verdict.report);
}

#[test]
fn a_flushed_server_loses_all_and_tokens_rise() {
    let server = Server::start(&["appendonly yes"]);
    let mut load = Load::start(&url(server.port()));
    for _ in 0..2 {
        load.disturb("FLUSHALL", Loss::Acknowledged, || server.command("FLUSHALL"));
    }
    let verdict = load.assert_fit();
    assert!(verdict.missing_tasks() > 0, "{}", verdict.report);
}

#[test]
fn a_promoted_replica_has_lost_the_last_writes_and_tokens_rise() {
    let mut master = Server::start(&["appendonly yes"]);
    let (clients, replication) = (Relay::to(master.port()), Relay::to(master.port()));
    let follows = format!("replicaof 127.0.0.1 {}", replication.port());
    let replica = Server::start(&["appendonly yes", &follows, "repl-diskless-sync-delay 0"]);
    eventually("the replica is connected", || replica.info("master_link_status") == "up");
    let mut load = Load::start(&url(clients.port()));
    load.disturb("promotion of a replica that is half a second behind", Loss::Acknowledged, || {
        replication.lead_to(None);
        std::thread::sleep(Duration::from_millis(500));
        master.kill();
        replica.command("REPLICAOF NO ONE");
        clients.lead_to(Some(replica.port()));
    });
    let verdict = load.assert_fit();
    assert!(verdict.missing_tasks() > 0, "{}", verdict.report);
    assert_eq!(replica.info("role"), "master");
}

/// A server that evicts is reported, and the load goes on with what is left.
#[test]
fn a_server_that_evicts_keys_is_reported_and_tokens_rise() {
    let server = Server::start(&["appendonly yes"]);
    let mut load = Load::start(&url(server.port()));
    for policy in ["allkeys-random", "allkeys-lru"] {
        load.disturb(policy, Loss::Keys, || {
            let used: u64 = server.info("used_memory").parse().unwrap();
            server.command(&format!("CONFIG SET maxmemory-policy {policy}"));
            server.command(&format!("CONFIG SET maxmemory {}", used - 100_000));
            let sandbox = Sandbox::new();
            let doctor = run(sandbox.command(["doctor"]).env("LEASEHOLD_STORE", url(server.port())));
            assert!(doctor.stdout.contains("REDIS_EVICTION"), "{doctor:?}");
            eventually("keys are evicted", || server.info("evicted_keys") != "0");
            std::thread::sleep(Duration::from_secs(2));
            server.command("CONFIG SET maxmemory 0");
        });
    }
    let verdict = load.assert_fit();
    assert!(verdict.report.operations.grants > 0);
}

#[test]
fn a_server_whose_memory_is_full_loses_nothing() {
    let server = Server::start(&["appendonly yes", "appendfsync always", "maxmemory-policy noeviction"]);
    let mut load = Load::start(&url(server.port()));
    load.disturb("full memory", Loss::Nothing, || {
        let used: u64 = server.info("used_memory").parse().unwrap();
        server.command(&format!("CONFIG SET maxmemory {}", used - 100_000));
        std::thread::sleep(Duration::from_secs(3));
        server.command("CONFIG SET maxmemory 0");
    });
    let verdict = load.assert_fit();
    assert!(verdict.refused("STORE_UNAVAILABLE") > 0, "{}", verdict.report);
}

#[test]
fn a_server_whose_clock_is_wrong_ends_leases_early_and_tokens_rise() {
    let mut clock = None;
    let server = Server::start_in(&["appendonly yes"], |folder| {
        clock.insert(FakeClock::new(folder)).environment().into()
    });
    let mut clock = clock.unwrap();
    let time = || server.command("TIME").lines().next().unwrap().parse::<f64>().unwrap();
    let mut load = Load::start(&url(server.port()));
    // Set back, a clock ends no lease.
    load.disturb("clock set back by 1 h", Loss::Nothing, || {
        clock.step(-3600);
        assert_ahead(time(), -3600.0);
    });
    load.disturb("clock set ahead by 2 h", Loss::Acknowledged, || {
        clock.step(7200);
        assert_ahead(time(), 3600.0);
    });
    load.disturb("clock runs 10 times as fast", Loss::Acknowledged, || {
        clock.run_fast(10);
        let (from, begun) = (time(), std::time::Instant::now());
        std::thread::sleep(Duration::from_secs(3));
        let ran = (time() - from) / begun.elapsed().as_secs_f64();
        assert!(ran > 5.0, "the clock runs {ran} times as fast");
        clock.run_normally();
    });
    // A clock ends leases, and loses no task.
    assert_eq!(load.assert_fit().missing_tasks(), 0);
}
