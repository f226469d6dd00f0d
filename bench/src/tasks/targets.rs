//! Performance targets, and whether this run meets them.

use serde::Serialize;

use super::plan::{BATCH, Case, Layer, Load};
use super::report::{PeerReportRow, ReportRow, engine_of};
use crate::plan::Engine;
use crate::stats::{duration, grouped};

/// Performance target.
#[derive(Debug, Serialize)]
pub(super) struct Target {
    pub(super) text: String,
    /// Result of this run.
    pub(super) found: String,
    pub(super) met: bool,
}

const DRAIN: Load = Load::Drain { processes: 1 };

impl Target {
    /// Returns the targets that have a result.
    pub(super) fn all(rows: &[ReportRow], peers: &[PeerReportRow]) -> Vec<Self> {
        let find =
            |engine, load, by| rows.iter().find(|row| row.case == Case { engine, load } && row.by == by);
        let of_raw = |load, least| of_raw(find(Engine::Postgres, load, Layer::Client)?, least);
        let mut all = Vec::new();
        all.extend(of_raw(DRAIN, 1.0));
        all.extend(of_best_peer(peers));
        for clients in [1, 16] {
            all.extend(of_raw(Load::Enqueue { clients, batch: 1 }, 0.9));
        }
        all.extend(of_raw(Load::Enqueue { clients: 1, batch: BATCH }, 0.9));
        for other_process in [false, true] {
            all.extend(
                find(Engine::Postgres, Load::Start { other_process }, Layer::Client)
                    .and_then(starts_within_1_ms),
            );
        }
        all.extend(find(Engine::Full, DRAIN, Layer::Store).and_then(|row| per_second(row, 15_000.0)));
        all
    }
}

fn of_raw(row: &ReportRow, least: f64) -> Option<Target> {
    let (found, raw) = (row.of_raw?, row.case.describe(Layer::Raw).trim_start_matches("raw: "));
    Some(Target {
        text: format!("{}, {}: ≥ {least:.1} × {raw}", row.case, row.case.describe(row.by)),
        found: format!("{found:.2}"),
        met: found >= least,
    })
}

fn of_best_peer(peers: &[PeerReportRow]) -> Option<Target> {
    let on_postgres = peers.iter().filter(|peer| engine_of(peer.name) == Engine::Postgres);
    let measured = on_postgres.filter_map(|peer| Some((peer.name, peer.drain_of_it?)));
    let (name, found) = measured.min_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(Target {
        text: "postgres, drain, 1 worker, client: ≥ 2 × the best peer, tuned".to_owned(),
        found: format!("{found:.2} × {name}"),
        met: found >= 2.0,
    })
}

fn starts_within_1_ms(row: &ReportRow) -> Option<Target> {
    let p50 = row.p50_nanos?;
    Some(Target { text: format!("{}: p50 ≤ 1 ms", row.case), found: duration(p50), met: p50 <= 1e6 })
}

fn per_second(row: &ReportRow, least: f64) -> Option<Target> {
    let found = row.per_second?;
    Some(Target {
        text: format!("{}, {}: ≥ {}/s", row.case, row.case.describe(row.by), grouped(least)),
        found: format!("{}/s", grouped(found)),
        met: found >= least,
    })
}
