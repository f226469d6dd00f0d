//! Rounds of the server benchmark: the bare handler and leasehold in turn, then the waiters.

use std::time::Duration;

use anyhow::Result;

use super::cycles::{Cycles, measure};
use super::report::Report;
use super::server::{Kind, ServerProcess};
use super::waiters::{hand_overs, waiter_load};
use crate::cli::HttpArgs;
use crate::sandbox::runtime;

/// Numbers of connections.
pub(super) const CONNECTIONS: [u32; 3] = [1, 16, 64];

/// Results of the same load on both servers.
pub(super) struct Pair {
    pub(super) connections: u32,
    pub(super) bare: Cycles,
    pub(super) ours: Cycles,
}

/// Measures everything and prints it.
pub(crate) fn run(args: &HttpArgs) -> Result<()> {
    let runtime = runtime()?;
    let time = Duration::from_secs_f64(args.seconds);
    let mut pairs = Vec::new();
    let mut hand_over_times = Vec::new();
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        let (bare, ours) = (ServerProcess::new(Kind::Bare)?, ServerProcess::new(Kind::Leasehold)?);
        for connections in CONNECTIONS {
            let bare = runtime.block_on(measure(&bare.address, connections, time))?;
            let ours = runtime.block_on(measure(&ours.address, connections, time))?;
            pairs.push(Pair { connections, bare, ours });
        }
        hand_over_times.push(runtime.block_on(hand_overs(&ours.address))?);
    }
    eprintln!("{} waiters", args.waiters);
    let server = ServerProcess::new(Kind::Leasehold)?;
    let waiter_load = runtime.block_on(waiter_load(&server, args.waiters))?;
    print!("{}", Report::new(&pairs, &hand_over_times, &waiter_load)?.text(args.markdown));
    Ok(())
}
