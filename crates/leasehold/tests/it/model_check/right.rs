//! The rules as they are keep every promise in every world.

use super::config::Config;
use super::rules::RIGHT;
use super::system::System;
use super::worlds;
use stateright::{Checker, Model};
use std::time::Instant;

#[test]
fn all() {
    let only = std::env::var("ONLY").unwrap_or_default();
    for config in worlds::all() {
        if config.name.contains(&only) {
            run(config);
        }
    }
}

fn run(config: Config) {
    let name = config.name;
    let start = Instant::now();
    let checker = System::new(config, RIGHT)
        .checker()
        .target_state_count(std::env::var("MAX").map_or(3_000_000, |m| m.parse().unwrap()))
        .spawn_bfs()
        .join();
    println!(
        "{name:22} {:9} {:9} {:3} {:.1}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        start.elapsed().as_secs_f64()
    );
    checker.assert_properties();
}
