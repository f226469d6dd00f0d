//! What the project aims for, and whether this run gets there.

use serde::Serialize;

use super::Line;
use crate::command::Commands;
use crate::plan::{Engine, Floor, Keys};
use crate::stats::grouped;

/// One aim.
#[derive(Debug, Serialize)]
pub(crate) struct Aim {
    pub(crate) text: String,
    /// What was found.
    pub(crate) found: String,
    pub(crate) met: bool,
}

/// Which line an aim is about.
struct Spot {
    engine: Engine,
    keys: Keys,
    clients: u32,
    processes: u32,
    floor: Floor,
}

impl Aim {
    /// Those for which there is a figure.
    pub(crate) fn all(lines: &[Line], commands: Option<&Commands>) -> Vec<Self> {
        let own = |engine, clients, floor| Spot { engine, keys: Keys::Own, clients, processes: 1, floor };
        let one = |engine| Spot { engine, keys: Keys::One, clients: 16, processes: 1, floor: Floor::Client };
        let mut all = Vec::new();
        for floor in [Floor::Store, Floor::Client] {
            for clients in [1, 16] {
                all.extend(at_least_per_second(lines, &own(Engine::Memory, clients, floor), 1e6));
            }
        }
        for floor in [Floor::Store, Floor::Client] {
            all.extend(at_least_of_raw(lines, &own(Engine::Holders, 1, floor), 0.8));
            all.extend(at_least_of_raw(lines, &own(Engine::Full, 1, floor), 0.8));
            all.extend(at_least_of_raw(lines, &own(Engine::Full, 64, floor), 10.0));
        }
        all.extend(at_least_per_second(lines, &one(Engine::Holders), 1e4));
        for clients in [1, 16, 64] {
            all.extend(at_least_of_raw(lines, &own(Engine::Postgres, clients, Floor::Client), 0.9));
        }
        all.extend(at_least_of_raw(lines, &one(Engine::Postgres), 10.0));
        for (clients, least) in [(1, 0.95), (16, 2.0), (64, 2.0)] {
            all.extend(at_least_of_raw(lines, &own(Engine::Redis, clients, Floor::Client), least));
        }
        all.extend(at_least_of_raw(lines, &one(Engine::Redis), 0.5));
        for line in lines.iter().filter(|line| line.floor == Floor::Client) {
            all.extend(line.in_use.map(|part| Self {
                text: format!("{}: in use ≥ 90 % of the time", line.case),
                found: format!("{:.0} %", part * 100.0),
                met: part >= 0.9,
            }));
            all.extend(line.commands.filter(|_| line.case.hold_millis == 0).map(|count| Self {
                text: format!("{}: ≤ 4 commands for each hand-over", line.case),
                found: format!("{count:.1}"),
                met: count <= 4.0,
            }));
        }
        for line in lines.iter().filter(|line| line.floor == Floor::Client) {
            all.extend(line.overtaken.map(|overtaken| Self {
                text: format!("{}: no second turn before one who waits", line.case),
                found: format!("overtaken {overtaken} times at most"),
                met: overtaken <= 1,
            }));
        }
        all.extend(commands.and_then(at_most_of_flock));
        all
    }
}

fn at_least_per_second(lines: &[Line], spot: &Spot, least: f64) -> Option<Aim> {
    let line = find(lines, spot)?;
    Some(Aim {
        text: format!("{}, {}: ≥ {}/s", line.case, line.case.describe(line.floor), grouped(least)),
        found: format!("{}/s", grouped(line.per_second)),
        met: line.per_second >= least,
    })
}

fn at_least_of_raw(lines: &[Line], spot: &Spot, least: f64) -> Option<Aim> {
    let line = find(lines, spot)?;
    let raw = line.case.describe(Floor::Raw).trim_start_matches("raw: ");
    Some(Aim {
        text: format!("{}, {}: ≥ {least} × {raw}", line.case, line.case.describe(line.floor)),
        found: format!("{:.2}", line.of_raw),
        met: line.of_raw >= least,
    })
}

fn at_most_of_flock(commands: &Commands) -> Option<Aim> {
    let started = commands.as_ref().ok()?.last()?;
    Some(Aim {
        text: format!("{}: ≤ 1.5 × flock", started.command),
        found: format!("{:.2}", started.of_flock),
        met: started.of_flock <= 1.5,
    })
}

fn find<'a>(lines: &'a [Line], spot: &Spot) -> Option<&'a Line> {
    lines.iter().find(|line| {
        let case = &line.case;
        (case.engine, case.keys, case.clients) == (spot.engine, spot.keys, spot.clients)
            && (case.processes, line.floor, case.hold_millis) == (spot.processes, spot.floor, 0)
    })
}
