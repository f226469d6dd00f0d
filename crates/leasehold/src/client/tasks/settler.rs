//! Telling the store how attempts ended. What ends while one batch is under way is the next batch.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::floor::Floor;
use crate::client::leasehold::Inner;
use crate::error::Result;
use crate::model::{Settle, Settled};

/// So many at a time.
const BATCH: usize = 200;
/// The longest pause while the store cannot be reached.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// When the worker has to end, the store is tried so often more.
const LAST_TRIES: u32 = 3;

/// Settles whatever comes until nothing can come any more. Goes on through errors: a settlement counts as long as
/// nobody else was given the task, however late it is. Only a worker that has to end gives up.
pub(super) async fn settle_all(
    inner: Arc<Inner>,
    floor: Arc<Floor>,
    mut ended: mpsc::UnboundedReceiver<Settle>,
    over: CancellationToken,
) {
    let mut batch = Vec::with_capacity(BATCH);
    while ended.recv_many(&mut batch, BATCH).await > 0 {
        let (mut pause, mut last_tries) = (Duration::from_millis(50), 0);
        while let Err(error) = settle(&inner, &floor, &batch).await {
            if over.is_cancelled() {
                last_tries += 1;
                if last_tries > LAST_TRIES {
                    let tasks = batch.len();
                    tracing::error!(%error, tasks, "attempts ended, but the store was never told: they will be made again");
                    break;
                }
                pause = pause.min(Duration::from_millis(500));
            }
            tracing::warn!(%error, tasks = batch.len(), "attempts ended, but the store cannot be told yet");
            tokio::time::sleep(pause.mul_f64(0.75 + 0.5 * fastrand::f64())).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        batch.clear();
    }
}

async fn settle(inner: &Inner, floor: &Floor, batch: &[Settle]) -> Result<()> {
    let settled = inner.tasks()?.settle(batch).await?;
    for (settle, settled) in batch.iter().zip(settled) {
        if settled == Settled::Lost {
            tracing::warn!(task = %settle.id, token = %settle.token, "an attempt ended after its lease was lost; it does not count");
        }
        floor.let_go(settle.id, settle.token);
    }
    Ok(())
}
