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
    let (mut batch, mut last_tries) = (Vec::with_capacity(BATCH), 0);
    while ended.recv_many(&mut batch, BATCH).await > 0 {
        leave_out_the_lost(&mut batch);
        let mut pause = Duration::from_millis(50);
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

/// While the store could not be told, a task may have been lost and leased anew: only its newest attempt can count, and no
/// task is settled twice in one call.
fn leave_out_the_lost(batch: &mut Vec<Settle>) {
    batch.sort_by(|one, other| (one.id, other.token).cmp(&(other.id, one.token)));
    batch.dedup_by_key(|settle| settle.id);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{TaskId, Token, Verdict};

    #[test]
    fn of_two_attempts_at_a_task_the_newer_one_is_settled() {
        let settle = |task, token| Settle {
            id: TaskId::from_uuid(uuid::Uuid::from_u128(task)),
            token: Token::new(token).unwrap(),
            verdict: Verdict::Done(None),
        };
        let mut batch = vec![settle(2, 5), settle(1, 3), settle(2, 7), settle(1, 4)];
        leave_out_the_lost(&mut batch);
        assert_eq!(batch, [settle(1, 4), settle(2, 7)]);
    }
}
