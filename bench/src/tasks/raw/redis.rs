//! Redis without leasehold: a list of waiting tasks and a list of running tasks, without holders.

use anyhow::{Result, ensure};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::clients::raw_redis;
use crate::measure::{Window, now};
use crate::rounds::Figures;
use crate::sandbox::{Sandbox, runtime};
use crate::tasks::drain::{Enqueuer, measure_clients};

/// Client with its own connection: one command per batch.
struct Pusher {
    conn: MultiplexedConnection,
    waiting: String,
    tasks: Vec<String>,
}

impl Enqueuer for Pusher {
    async fn enqueue(&mut self) -> Result<()> {
        let _: u64 = self.conn.lpush(&self.waiting, &self.tasks).await?;
        Ok(())
    }
}

pub(in crate::tasks) fn enqueue(
    sandbox: &Sandbox,
    clients: u32,
    batch: u32,
    window: impl FnOnce() -> Window,
) -> Result<Figures> {
    let (runtime, [waiting, _]) = (runtime()?, keys(sandbox));
    let open = |_| {
        let conn = runtime.block_on(connect(sandbox))?;
        Ok(Pusher { conn, waiting: waiting.clone(), tasks: tasks(0..u64::from(batch)) })
    };
    let clients = (0..clients).map(open).collect::<Result<Vec<_>>>()?;
    measure_clients(&runtime, clients, batch, window())
}

/// Drains with two round trips per batch: one takes, one removes.
pub(in crate::tasks) fn drain(sandbox: &Sandbox, all: u64, batch: u32) -> Result<Figures> {
    let [waiting, running] = keys(sandbox);
    runtime()?.block_on(async {
        let mut conn = connect(sandbox).await?;
        for first in (0..all).step_by(1000) {
            let _: u64 = conn.lpush(&waiting, tasks(first..all.min(first + 1000))).await?;
        }
        let (begun, mut done) = (now(), 0);
        while done < all {
            let mut take = redis::pipe();
            for _ in 0..batch {
                take.rpoplpush(&waiting, &running);
            }
            let taken: Vec<Option<String>> = take.query_async(&mut conn).await?;
            let mut remove = redis::pipe();
            for task in taken.iter().flatten() {
                remove.lrem(&running, 1, task);
            }
            ensure!(!remove.is_empty(), "tasks are left that cannot be taken");
            let removed: Vec<u64> = remove.query_async(&mut conn).await?;
            done += removed.iter().sum::<u64>();
        }
        Ok(Figures::since(begun, all))
    })
}

/// Returns distinct payloads, so that `LREM` removes the right task.
fn tasks(numbers: std::ops::Range<u64>) -> Vec<String> {
    numbers.map(|number| format!(r#"{{"id":{number},"sent":0}}"#)).collect()
}

fn keys(sandbox: &Sandbox) -> [String; 2] {
    ["waiting", "running"].map(|list| format!("{}:{list}", sandbox.namespace()))
}

async fn connect(sandbox: &Sandbox) -> Result<MultiplexedConnection> {
    raw_redis::connect(&sandbox.remote()?).await
}
