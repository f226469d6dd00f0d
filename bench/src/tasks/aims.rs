//! What the project aims for, and whether this run gets there.

use serde::Serialize;

use super::plan::{BATCH, By, Case, Load};
use super::report::{Line, PeerLine, engine_of};
use crate::plan::Engine;
use crate::stats::{duration, grouped};

/// One aim.
#[derive(Debug, Serialize)]
pub(super) struct Aim {
    pub(super) text: String,
    /// What was found.
    pub(super) found: String,
    pub(super) met: bool,
}

const DRAIN: Load = Load::Drain { processes: 1 };

impl Aim {
    /// Those for which there is a figure.
    pub(super) fn all(lines: &[Line], peers: &[PeerLine]) -> Vec<Self> {
        let find =
            |engine, load, by| lines.iter().find(|line| line.case == Case { engine, load } && line.by == by);
        let of_raw = |load, least| of_raw(find(Engine::Postgres, load, By::Client)?, least);
        let mut all = Vec::new();
        all.extend(of_raw(DRAIN, 1.0));
        all.extend(of_best_peer(peers));
        for clients in [1, 16] {
            all.extend(of_raw(Load::Enqueue { clients, batch: 1 }, 0.9));
        }
        all.extend(of_raw(Load::Enqueue { clients: 1, batch: BATCH }, 0.9));
        for elsewhere in [false, true] {
            all.extend(find(Engine::Postgres, Load::Start { elsewhere }, By::Client).and_then(soon));
        }
        all.extend(find(Engine::Full, DRAIN, By::Store).and_then(|line| per_second(line, 15_000.0)));
        all
    }
}

fn of_raw(line: &Line, least: f64) -> Option<Aim> {
    let (found, raw) = (line.of_raw?, line.case.describe(By::Raw).trim_start_matches("raw: "));
    Some(Aim {
        text: format!("{}, {}: ≥ {least:.1} × {raw}", line.case, line.case.describe(line.by)),
        found: format!("{found:.2}"),
        met: found >= least,
    })
}

fn of_best_peer(peers: &[PeerLine]) -> Option<Aim> {
    let on_postgres = peers.iter().filter(|peer| engine_of(peer.name) == Engine::Postgres);
    let measured = on_postgres.filter_map(|peer| Some((peer.name, peer.drain_of_it?)));
    let (name, found) = measured.min_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(Aim {
        text: "postgres, drain, 1 worker, client: ≥ 2 × the best peer, tuned".to_owned(),
        found: format!("{found:.2} × {name}"),
        met: found >= 2.0,
    })
}

fn soon(line: &Line) -> Option<Aim> {
    let p50 = line.p50_nanos?;
    Some(Aim { text: format!("{}: p50 ≤ 1 ms", line.case), found: duration(p50), met: p50 <= 1e6 })
}

fn per_second(line: &Line, least: f64) -> Option<Aim> {
    let found = line.per_second?;
    Some(Aim {
        text: format!("{}, {}: ≥ {}/s", line.case, line.case.describe(line.by), grouped(least)),
        found: format!("{}/s", grouped(found)),
        met: found >= least,
    })
}
