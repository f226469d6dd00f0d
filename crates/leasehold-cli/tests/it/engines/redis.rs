//! The binary on Redis.

#[cfg(feature = "torture")]
mod faults;
#[cfg(feature = "torture")]
mod private_server;

use super::support::engine_at;
use crate::deadlocks::deadlocks_are_found;
use crate::support::Sandbox;
use crate::torture::{is_fit, race_is_fair};

#[test]
fn it_is_fit_under_faults() {
    let report = is_fit(&Sandbox::new(), &engine_at("redis"), None);
    assert_eq!(report["engine"], "redis");
}

#[test]
fn one_client_wins_a_race() {
    race_is_fair(&Sandbox::new(), &engine_at("redis"));
}

#[test]
fn deadlocks_are_found_on_redis() {
    let url = engine_at("redis");
    let mark = if url.contains('?') { '&' } else { '?' };
    let store = format!("{url}{mark}prefix=deadlocks-{}", std::process::id());
    deadlocks_are_found(&|command| _ = command.env("LEASEHOLD_STORE", &store));
}
