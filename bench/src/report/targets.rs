//! Performance targets, and whether this run meets them.

use serde::Serialize;

use super::ReportRow;
use crate::plan::{Engine, Keys, Layer};
use crate::run_command::Commands;
use crate::stats::grouped;

/// Performance target.
#[derive(Debug, Serialize)]
pub(crate) struct Target {
    pub(crate) text: String,
    /// Result of this run.
    pub(crate) found: String,
    pub(crate) met: bool,
}

/// Row that a target refers to.
struct RowKey {
    engine: Engine,
    keys: Keys,
    clients: u32,
    processes: u32,
    layer: Layer,
}

impl Target {
    /// Returns the targets that have a result.
    pub(crate) fn all(rows: &[ReportRow], commands: Option<&Commands>) -> Vec<Self> {
        let own = |engine, clients, layer| RowKey { engine, keys: Keys::Own, clients, processes: 1, layer };
        let one =
            |engine| RowKey { engine, keys: Keys::One, clients: 16, processes: 1, layer: Layer::Client };
        let mut all = Vec::new();
        for layer in [Layer::Store, Layer::Client] {
            for clients in [1, 16] {
                all.extend(at_least_per_second(rows, &own(Engine::Memory, clients, layer), 1e6));
            }
        }
        for layer in [Layer::Store, Layer::Client] {
            all.extend(at_least_of_raw(rows, &own(Engine::Holders, 1, layer), 0.8));
            all.extend(at_least_of_raw(rows, &own(Engine::Full, 1, layer), 0.8));
            all.extend(at_least_of_raw(rows, &own(Engine::Full, 64, layer), 10.0));
        }
        all.extend(at_least_per_second(rows, &one(Engine::Holders), 1e4));
        for clients in [1, 16, 64] {
            all.extend(at_least_of_raw(rows, &own(Engine::Postgres, clients, Layer::Client), 0.9));
        }
        all.extend(at_least_of_raw(rows, &one(Engine::Postgres), 10.0));
        for (clients, least) in [(1, 0.95), (16, 2.0), (64, 2.0)] {
            all.extend(at_least_of_raw(rows, &own(Engine::Redis, clients, Layer::Client), least));
        }
        all.extend(at_least_of_raw(rows, &one(Engine::Redis), 0.5));
        for row in rows.iter().filter(|row| row.layer == Layer::Client) {
            all.extend(row.in_use.map(|part| Self {
                text: format!("{}: in use ≥ 90 % of the time", row.case),
                found: format!("{:.0} %", part * 100.0),
                met: part >= 0.9,
            }));
            all.extend(row.commands.filter(|_| row.case.hold_millis == 0).map(|count| Self {
                text: format!("{}: ≤ 4 commands for each hand-over", row.case),
                found: format!("{count:.1}"),
                met: count <= 4.0,
            }));
        }
        for row in rows.iter().filter(|row| row.layer == Layer::Client) {
            all.extend(row.overtaken.map(|overtaken| Self {
                text: format!("{}: no second turn before a waiter", row.case),
                found: format!("overtaken {overtaken} times at most"),
                met: overtaken <= 1,
            }));
        }
        all.extend(commands.and_then(at_most_of_flock));
        all
    }
}

fn at_least_per_second(rows: &[ReportRow], key: &RowKey, least: f64) -> Option<Target> {
    let row = find(rows, key)?;
    Some(Target {
        text: format!("{}, {}: ≥ {}/s", row.case, row.case.describe(row.layer), grouped(least)),
        found: format!("{}/s", grouped(row.per_second)),
        met: row.per_second >= least,
    })
}

fn at_least_of_raw(rows: &[ReportRow], key: &RowKey, least: f64) -> Option<Target> {
    let row = find(rows, key)?;
    let raw = row.case.describe(Layer::Raw).trim_start_matches("raw: ");
    Some(Target {
        text: format!("{}, {}: ≥ {least} × {raw}", row.case, row.case.describe(row.layer)),
        found: format!("{:.2}", row.of_raw),
        met: row.of_raw >= least,
    })
}

fn at_most_of_flock(commands: &Commands) -> Option<Target> {
    let started = commands.as_ref().ok()?.last()?;
    Some(Target {
        text: format!("{}: ≤ 1.5 × flock", started.command),
        found: format!("{:.2}", started.of_flock),
        met: started.of_flock <= 1.5,
    })
}

fn find<'a>(rows: &'a [ReportRow], key: &RowKey) -> Option<&'a ReportRow> {
    rows.iter().find(|row| {
        let case = &row.case;
        (case.engine, case.keys, case.clients) == (key.engine, key.keys, key.clients)
            && (case.processes, row.layer, case.hold_millis) == (key.processes, key.layer, 0)
    })
}
