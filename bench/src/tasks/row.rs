//! One row in one round: a new place, the load, and nothing left behind.

use std::path::Path;

use anyhow::{Result, bail};

use super::figure::Figure;
use super::plan::{BATCH, By, Case, Load};
use super::raw::{postgres, redis, sqlite};
use super::{drain, enqueue, start};
use crate::measure::Window;
use crate::pgbench::Pgbench;
use crate::place::Place;
use crate::plan::Engine;
use crate::rounds::window_of;

/// How much is measured in each row.
#[derive(Debug, Clone)]
pub(super) struct Extent {
    /// How long tasks are added.
    pub(super) seconds: f64,
    /// How many are worked off.
    pub(super) tasks: u64,
    /// How long tasks are added to an idle worker.
    pub(super) start_seconds: f64,
    pub(super) pgbench: Option<Pgbench>,
}

/// Each measurement has a new folder, which goes when it is done.
pub(super) fn measure(case: &Case, by: By, extent: &Extent, folder: &Path) -> Result<Figure> {
    let folder = tempfile::tempdir_in(folder)?;
    let place = Place { engine: case.engine, folder: folder.path().to_owned() };
    let figure = match by {
        By::Raw => raw(&place, case.load, extent, BATCH),
        By::RawSingle => raw(&place, case.load, &extent.tenth(), 1),
        By::Store | By::Client => leasehold(&place, case.load, by, extent),
    };
    place.clean_up()?;
    figure
}

fn leasehold(place: &Place, load: Load, by: By, extent: &Extent) -> Result<Figure> {
    match load {
        Load::Enqueue { clients, batch } => enqueue::measure(place, clients, batch, || extent.window()),
        Load::Drain { .. } if by == By::Store => drain::by_store(place, extent.tasks, BATCH),
        Load::Drain { processes: 1 } => drain::by_worker(place, extent.tasks),
        Load::Drain { processes } => drain::by_processes(place, extent.tasks, processes),
        Load::Start { elsewhere: false } => start::here(place, extent.start_seconds),
        Load::Start { elsewhere: true } => start::elsewhere(place, extent.start_seconds),
        Load::Lease { .. } => bail!("leases are measured by themselves"),
    }
}

fn raw(place: &Place, load: Load, extent: &Extent, batch: u32) -> Result<Figure> {
    match (place.engine, load, &extent.pgbench) {
        (Engine::Postgres, Load::Enqueue { clients, batch }, Some(pgbench)) => {
            pgbench.enqueue(place, clients, batch, extent.seconds)
        }
        (Engine::Postgres, Load::Enqueue { clients, batch }, None) => {
            postgres::enqueue(place, clients, batch, || extent.window())
        }
        (Engine::Redis, Load::Enqueue { clients, batch }, _) => {
            redis::enqueue(place, clients, batch, || extent.window())
        }
        (_, Load::Enqueue { batch, .. }, _) => sqlite::enqueue(place, batch, extent.window()),
        (Engine::Postgres, Load::Start { .. }, _) => postgres::start(place, extent.start_seconds),
        (Engine::Postgres, _, Some(pgbench)) => pgbench.drain(place, extent.tasks, batch),
        (Engine::Postgres, _, None) => postgres::drain(place, extent.tasks, batch),
        (Engine::Redis, ..) => redis::drain(place, extent.tasks, batch),
        _ => sqlite::drain(place, extent.tasks, batch),
    }
}

impl Extent {
    fn window(&self) -> Window {
        window_of(std::time::Duration::from_secs_f64(self.seconds))
    }

    /// One at a time takes so much longer that fewer have to do.
    fn tenth(&self) -> Self {
        Self { tasks: (self.tasks / 10).max(1), ..self.clone() }
    }
}
