//! Faults of the server under load: crashes, promotions, timeouts, ended sessions and wrong clocks.

use std::time::Duration;

use super::private_server::Server;
use crate::faults::fake_clock::{FakeClock, assert_ahead};
use crate::faults::load::{Load, Loss};
use crate::faults::relay::Relay;
use crate::support::eventually;

fn url(port: u16) -> String {
    format!("postgres://leasehold@127.0.0.1:{port}/postgres")
}

#[test]
fn a_killed_and_restarted_server_loses_nothing() {
    let mut server = Server::start(&[]);
    let mut load = Load::start(&url(server.port()));
    for _ in 0..2 {
        load.disturb("kill and restart", Loss::Nothing, || {
            server.kill();
            server.up();
        });
    }
    load.assert_fit();
}

#[test]
fn a_promoted_replica_has_lost_the_last_commits_and_tokens_rise() {
    let mut primary = Server::start(&[]);
    let (clients, replication) = (Relay::to(primary.port()), Relay::to(primary.port()));
    let replica = primary.replica(replication.port());
    let mut load = Load::start(&url(clients.port()));
    load.disturb("promotion of a replica that is half a second behind", Loss::Acknowledged, || {
        replication.lead_to(None);
        std::thread::sleep(Duration::from_millis(500));
        promote(&mut primary, &replica, &clients);
    });
    let verdict = load.assert_fit();
    assert!(verdict.missing_tasks() > 0, "{}", verdict.report);
}

#[test]
fn a_promoted_synchronous_replica_has_lost_nothing() {
    let mut primary = Server::start(&[]);
    let replica = primary.replica(primary.port());
    primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
    primary.sql("SELECT pg_reload_conf()");
    eventually("the replica is synchronous", || {
        primary.sql("SELECT sync_state FROM pg_stat_replication") == "sync"
    });
    let clients = Relay::to(primary.port());
    let mut load = Load::start(&url(clients.port()));
    load.disturb("promotion of a synchronous replica", Loss::Nothing, || {
        promote(&mut primary, &replica, &clients);
    });
    load.assert_fit();
}

/// Kills the primary, promotes its replica and leads the clients to it.
fn promote(primary: &mut Server, replica: &Server, clients: &Relay) {
    clients.lead_to(None);
    primary.kill();
    assert_eq!(replica.sql("SELECT pg_promote(true, 60)"), "t");
    clients.lead_to(Some(replica.port()));
}

/// Statements end with the timeout of the server, or so late that their lease has ended.
#[test]
fn statements_that_run_into_their_timeout_change_nothing() {
    let server = Server::start(&[]);
    let mut load = Load::start(&url(server.port()));
    server.sql(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_sleep(3.6 + 0.8 * random()); RETURN NEW; END'",
    );
    load.disturb("slow statements", Loss::Nothing, || {
        for table in ["locks", "tasks"] {
            server.sql(&format!(
                "CREATE TRIGGER slow BEFORE INSERT OR UPDATE ON leasehold.{table} \
                 FOR EACH ROW EXECUTE FUNCTION slow()"
            ));
        }
        std::thread::sleep(Duration::from_secs(5));
        for table in ["locks", "tasks"] {
            server.sql(&format!("DROP TRIGGER slow ON leasehold.{table}"));
        }
    });
    let log = server.log();
    assert!(log.contains("canceling statement due to statement timeout"), "{log}");
    load.assert_fit();
}

#[test]
fn ended_sessions_are_replaced() {
    let server = Server::start(&[]);
    let mut load = Load::start(&url(server.port()));
    let mut ended = 0;
    load.disturb("ended sessions", Loss::Nothing, || {
        for _ in 0..20 {
            let count = server.sql(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
            );
            ended += count.parse::<u32>().unwrap();
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    assert!(ended > 20, "{ended} sessions were ended");
    load.assert_fit();
}

#[test]
fn a_server_whose_clock_is_wrong_ends_leases_early_and_tokens_rise() {
    let mut clock = None;
    let server = Server::start_in(&[], |folder| clock.insert(FakeClock::new(folder)).environment().into());
    let mut clock = clock.unwrap();
    let time = || server.sql("SELECT extract(epoch FROM clock_timestamp())").parse::<f64>().unwrap();
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
