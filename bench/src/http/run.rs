//! The rounds: the bare handler and leasehold by turns, then those who wait.

use std::time::Duration;

use anyhow::Result;

use super::cycles::{Cycles, measure};
use super::report::Report;
use super::server::{Kind, Started};
use super::waiters::{crowd, hand_overs};
use crate::cli::HttpArgs;
use crate::place::runtime;

/// So many connections.
pub(super) const CONNECTIONS: [u32; 3] = [1, 16, 64];

/// The same load on both servers, one after the other.
pub(super) struct Pair {
    pub(super) connections: u32,
    pub(super) bare: Cycles,
    pub(super) ours: Cycles,
}

/// Measures and prints.
pub(crate) fn run(args: &HttpArgs) -> Result<()> {
    let runtime = runtime()?;
    let time = Duration::from_secs_f64(args.seconds);
    let mut pairs = Vec::new();
    let mut lines = Vec::new();
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        let (bare, ours) = (Started::new(Kind::Bare)?, Started::new(Kind::Leasehold)?);
        for connections in CONNECTIONS {
            let bare = runtime.block_on(measure(&bare.address, connections, time))?;
            let ours = runtime.block_on(measure(&ours.address, connections, time))?;
            pairs.push(Pair { connections, bare, ours });
        }
        lines.push(runtime.block_on(hand_overs(&ours.address))?);
    }
    eprintln!("{} waiters", args.waiters);
    let server = Started::new(Kind::Leasehold)?;
    let crowd = runtime.block_on(crowd(&server, args.waiters))?;
    print!("{}", Report::new(&pairs, &lines, &crowd)?.text(args.markdown));
    Ok(())
}
