//! Every row once in each round, so that what the machine does meanwhile happens to all of them alike.

use std::path::Path;

use anyhow::Result;

use super::figure::Figure;
use super::peers::{Peer, PeerRow};
use super::plan::{By, Case};
use super::row::{Extent, measure};
use crate::probe::Probe;
use crate::stats::{duration, grouped};

/// One row.
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) by: By,
    /// Or why there is none.
    pub(super) figure: Result<Figure, String>,
}

/// One round: how the machine was, and every row.
pub(super) struct Round {
    pub(super) probe: Probe,
    pub(super) rows: Vec<Row>,
    pub(super) peers: Vec<PeerRow>,
}

/// A row and the raw one beside it are measured one right after the other; every other round goes backwards.
pub(super) fn round(
    number: u32,
    rows: &[(Case, By)],
    peers: &[Peer],
    extent: &Extent,
    folder: &Path,
) -> Result<Round> {
    let probe = Probe::take(folder)?;
    eprintln!("round {}: fsync {:.0} µs, load {:.1}", number + 1, probe.fsync_micros, probe.load);
    let mut order = rows.to_vec();
    if number % 2 == 1 {
        order.reverse();
    }
    let mut rows = Vec::new();
    for (case, by) in order {
        let figure = measure(&case, by, extent, folder).map_err(|error| format!("{error:#}"));
        rows.push(Row { case, by, figure });
        eprintln!("  {}", rows[rows.len() - 1].line());
    }
    let peers = peers.iter().map(|peer| peer.measure(extent)).collect();
    Ok(Round { probe, rows, peers })
}

impl Row {
    /// For whoever watches.
    pub(super) fn line(&self) -> String {
        let mut line = format!("{}, {}:", self.case, self.case.describe(self.by));
        match &self.figure {
            Err(why) => line = format!("{line} {why}"),
            Ok(figure) => {
                line.extend(figure.rate.map(|rate| format!(" {}/s", grouped(rate))));
                line.extend(figure.quantile(0.5).map(|p50| format!(" p50 {}", duration(p50))));
                line.extend(figure.quantile(0.99).map(|p99| format!(" p99 {}", duration(p99))));
            }
        }
        line
    }
}
