//! Redis without leasehold: a list of what waits, a list of what runs, and no way to tell one holder from another.

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, Client};

use crate::measure::{Window, now};
use crate::place::{Place, runtime};
use crate::tasks::adders::{self, Adder};
use crate::tasks::figure::Figure;

/// A client with a connection of its own: one command for each batch.
struct Pusher {
    conn: MultiplexedConnection,
    waiting: String,
    tasks: Vec<String>,
}

impl Adder for Pusher {
    async fn add(&mut self) -> Result<()> {
        let _: u64 = self.conn.lpush(&self.waiting, &self.tasks).await?;
        Ok(())
    }
}

pub(in crate::tasks) fn enqueue(
    place: &Place,
    clients: u32,
    batch: u32,
    window: impl FnOnce() -> Window,
) -> Result<Figure> {
    let (runtime, [waiting, _]) = (runtime()?, keys(place));
    let open = |_| {
        let conn = runtime.block_on(connect(place))?;
        Ok(Pusher { conn, waiting: waiting.clone(), tasks: tasks(0..u64::from(batch)) })
    };
    let clients = (0..clients).map(open).collect::<Result<Vec<_>>>()?;
    adders::measure(&runtime, clients, batch, window())
}

/// Two round trips for each batch: one takes, one removes.
pub(in crate::tasks) fn drain(place: &Place, all: u64, batch: u32) -> Result<Figure> {
    let [waiting, running] = keys(place);
    runtime()?.block_on(async {
        let mut conn = connect(place).await?;
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
            ensure!(!remove.is_empty(), "there are tasks left that nobody gets");
            let removed: Vec<u64> = remove.query_async(&mut conn).await?;
            done += removed.iter().sum::<u64>();
        }
        Ok(Figure::since(begun, all))
    })
}

/// What tasks are about; each is another, so that it can be told from the others.
fn tasks(numbers: std::ops::Range<u64>) -> Vec<String> {
    numbers.map(|number| format!(r#"{{"id":{number},"sent":0}}"#)).collect()
}

fn keys(place: &Place) -> [String; 2] {
    ["waiting", "running"].map(|list| format!("{}:{list}", place.space()))
}

async fn connect(place: &Place) -> Result<MultiplexedConnection> {
    Ok(Client::open(place.remote()?)?.get_multiplexed_async_connection().await?)
}
