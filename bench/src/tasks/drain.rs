//! Working off a backlog: by a worker here, by workers in other processes, and by the store's own calls.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::model::{AttemptResult, LeaseTasks, QueueName, Settle, Settled, Task, Ttl, WorkerId};
use leasehold::store::TaskStore;
use leasehold::{Leasehold, TaskType};
use uuid::Uuid;

use super::crew::{Crew, OtherCrew, Tick};
use super::enqueue::fill;
use super::figure::Figure;
use crate::measure::now;
use crate::place::{Place, runtime};

/// A backlog that is not worked off by then never will be.
const PATIENCE: Duration = Duration::from_mins(1);
/// How often it is looked whether all is done.
const LOOK: Duration = Duration::from_millis(5);

/// By one worker in this process, from its start until the store knows that everything is done.
pub(super) fn by_worker(place: &Place, tasks: u64) -> Result<Figure> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let leasehold = Leasehold::connect(&place.url()?).await?;
        fill(&leasehold, tasks).await?;
        let begun = now();
        let crew = Crew::start(&leasehold)?;
        let all_begun = async {
            while crew.begun() < tasks {
                tokio::time::sleep(LOOK).await;
            }
            until_done(&leasehold).await
        };
        tokio::time::timeout(PATIENCE, all_begun).await.context("the backlog is not worked off")??;
        let figure = Figure::since(begun, tasks);
        crew.stop().await;
        Ok(figure)
    })
}

/// By one worker in each of so many processes that are there when it begins.
pub(super) fn by_processes(place: &Place, tasks: u64, processes: u32) -> Result<Figure> {
    let runtime = runtime()?;
    let leasehold = runtime.block_on(Leasehold::connect(&place.url()?))?;
    runtime.block_on(fill(&leasehold, tasks))?;
    let mut crews = (0..processes).map(|_| OtherCrew::prepare(place)).collect::<Result<Vec<_>>>()?;
    let begun = now();
    for crew in &mut crews {
        crew.start()?;
    }
    let done = async { tokio::time::timeout(PATIENCE, until_done(&leasehold)).await };
    runtime.block_on(done).context("the backlog is not worked off")??;
    let figure = Figure::since(begun, tasks);
    for crew in crews {
        crew.stop()?;
    }
    Ok(figure)
}

/// The store has nothing left that is not over.
pub(super) async fn until_done(leasehold: &Leasehold) -> Result<()> {
    let tasks = leasehold.tasks()?;
    while tasks.queues().await?.iter().any(|queue| queue.counts.open() > 0) {
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// By the store's calls alone: lease so many, settle them, again.
pub(super) fn by_store(place: &Place, tasks: u64, batch: u32) -> Result<Figure> {
    runtime()?.block_on(async {
        let leasehold = Leasehold::connect(&place.url()?).await?;
        fill(&leasehold, tasks).await?;
        let store = leasehold.store();
        let store = store.tasks().context("there are no tasks on this store")?;
        let (begun, mut done) = (now(), 0);
        while done < tasks {
            let settled = lease_and_settle(store, batch).await?;
            ensure!(settled > 0, "there are {} tasks left that nobody gets", tasks - done);
            done += settled;
        }
        Ok(Figure::since(begun, tasks))
    })
}

async fn lease_and_settle(store: &dyn TaskStore, batch: u32) -> Result<u64> {
    let leased = store.lease(&ask(batch)?).await?;
    settle(store, &leased.tasks).await
}

/// What a worker asks for.
pub(super) fn ask(max: u32) -> Result<LeaseTasks> {
    let (worker, queues) = (WorkerId::from_uuid(Uuid::from_u128(7)), vec![QueueName::new(Tick::QUEUE)?]);
    Ok(LeaseTasks::new(worker, queues, max, Ttl::from_secs(30)))
}

/// Says that all of them are done; how many there were.
pub(super) async fn settle(store: &dyn TaskStore, tasks: &[Task]) -> Result<u64> {
    let done = |task: &Task| Settle { id: task.id, token: task.token, verdict: AttemptResult::Done(None) };
    let settle: Vec<_> = tasks.iter().map(done).collect();
    let settled = store.settle(&settle).await?;
    ensure!(settled.iter().all(|settled| *settled != Settled::Lost), "a lease was lost");
    Ok(settled.len() as u64)
}
