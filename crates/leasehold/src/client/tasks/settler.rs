//! Reports the results of attempts to the store. Attempts that end while one batch is in flight
//! form the next batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::floor::Floor;
use crate::client::leasehold::Inner;
use crate::error::{Error, Result};
use crate::model::{AttemptResult, Message, Settle, Settled};
use crate::store::BootInstant;

/// Maximum number of settlements in one call.
const BATCH: usize = 200;
/// Maximum number of bytes of results and messages in one call, unless a single settlement has
/// more.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum delay between tries while the store cannot be reached.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Maximum number of further tries once the worker has to end.
const LAST_TRIES: u32 = 3;
/// Initial delay before a task that another transaction holds is tried again; the delay doubles
/// each time.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// Maximum delay before a task that another transaction holds is tried again.
const LONGEST_BUSY_PAUSE: Duration = Duration::from_secs(2);

/// Settles all attempts that arrive until the channel is closed. Continues after errors: a
/// settlement counts, however late, as long as no process has ended the lease. Only a worker that
/// has to end gives up.
pub(super) async fn settle_all(
    inner: Arc<Inner>,
    floor: Arc<Floor>,
    mut ended: mpsc::UnboundedReceiver<Settle>,
    over: CancellationToken,
) {
    let aside = Aside::default();
    let mut settler = Settler { inner, floor, over, pause: FIRST_PAUSE, last_tries: 0, aside };
    let mut open = true;
    while open || !settler.aside.settles.is_empty() {
        let mut batch = Vec::with_capacity(BATCH);
        tokio::select! {
            biased;
            received = ended.recv_many(&mut batch, BATCH), if open => open = received > 0,
            () = tokio::time::sleep(settler.aside.due()), if !settler.aside.settles.is_empty() => {}
        }
        if settler.aside.due().is_zero() {
            batch.extend(settler.aside.take());
        }
        leave_out_the_lost(&mut batch);
        let mut parts = bounded(batch);
        while let Some(part) = parts.pop_front() {
            for rest in settler.settle(part).await.into_iter().rev() {
                parts.push_front(rest);
            }
        }
        if !settler.aside.settles.is_empty() && settler.last_tries > LAST_TRIES {
            let tasks = settler.aside.settles.len();
            tracing::error!(
                tasks,
                "attempts ended, but their tasks are held by another transaction: they will be made again"
            );
            return;
        }
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);

struct Settler {
    inner: Arc<Inner>,
    floor: Arc<Floor>,
    over: CancellationToken,
    pause: Duration,
    last_tries: u32,
    aside: Aside,
}

impl Settler {
    /// Settles a batch once, and returns the parts to try again: in halves, because a smaller call
    /// may succeed where this one failed.
    async fn settle(&mut self, mut batch: Vec<Settle>) -> Vec<Vec<Settle>> {
        let Err(error) = self.tell(&batch).await else {
            self.pause = FIRST_PAUSE;
            self.inner.contact.answered();
            return Vec::new();
        };
        let refused = !error.is_retryable();
        if refused && batch.len() == 1 && self.settle_as_failed(&batch[0], &error).await {
            return Vec::new();
        }
        let tasks = batch.len();
        let too_large = refused && tasks > 1;
        if !too_large && !self.may_try_again(&error, tasks).await {
            return Vec::new();
        }
        if too_large {
            tracing::warn!(%error, tasks, "the store refused a batch of ended attempts; trying smaller ones");
        }
        let half = batch.split_off(tasks.div_ceil(2));
        if half.is_empty() { vec![batch] } else { vec![batch, half] }
    }

    /// Waits before the next try. Returns false if the worker has to end and has used its last
    /// tries.
    async fn may_try_again(&mut self, error: &Error, tasks: usize) -> bool {
        if self.over.is_cancelled() {
            self.last_tries += 1;
            if self.last_tries > LAST_TRIES {
                tracing::error!(%error, tasks, "attempts ended, but the store was never told: they will be made again");
                return false;
            }
            self.pause = self.pause.min(Duration::from_millis(500));
        }
        self.inner.contact.failed("attempts ended, but the store cannot be told yet", error);
        tokio::time::sleep(self.pause.mul_f64(0.75 + 0.5 * fastrand::f64())).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }

    /// Settles an attempt without its result, after the store refused the settlement; returns
    /// whether the store accepted that. If it did, the result itself cannot be stored, and no later
    /// try could change that. If the store refuses that too, it refuses everything for now.
    async fn settle_as_failed(&mut self, refused: &Settle, error: &Error) -> bool {
        let why = Message::new(format!("its result cannot be kept: {error}"));
        let verdict = match &refused.verdict {
            AttemptResult::Done(Some(_)) | AttemptResult::Fail(_) => AttemptResult::Fail(why),
            AttemptResult::Retry(_, pause) => AttemptResult::Retry(why, *pause),
            AttemptResult::Abort(Some(_)) => AttemptResult::Abort(Some(why)),
            AttemptResult::Done(None)
            | AttemptResult::Abort(None)
            | AttemptResult::Snooze(_)
            | AttemptResult::Defer(_)
            | AttemptResult::Return => {
                return false;
            }
        };
        let failed = Settle { verdict, ..refused.clone() };
        if self.tell(std::slice::from_ref(&failed)).await.is_err() {
            return false;
        }
        tracing::error!(task = %refused.id, %error, "the store refused the result of a task");
        true
    }

    async fn tell(&mut self, batch: &[Settle]) -> Result<()> {
        let settled = self.inner.tasks()?.settle(batch).await?;
        let mut busy = Vec::new();
        for (settle, settled) in batch.iter().zip(settled) {
            match settled {
                Settled::Busy => {
                    busy.push(settle.clone());
                    continue;
                }
                Settled::Lost if settle.verdict != AttemptResult::Return => {
                    tracing::warn!(task = %settle.id, token = %settle.token, "an attempt ended after its lease was lost; it does not count");
                }
                Settled::Lost | Settled::Now(_) => {}
            }
            self.floor.let_go(settle.id, settle.token);
        }
        if !busy.is_empty() && self.over.is_cancelled() {
            self.last_tries += 1;
        }
        self.aside.put(busy);
        Ok(())
    }
}

/// Settlements whose tasks are held by another transaction.
struct Aside {
    settles: Vec<Settle>,
    pause: Duration,
    again_at: BootInstant,
}

impl Default for Aside {
    fn default() -> Self {
        Self { settles: Vec::new(), pause: BUSY_PAUSE, again_at: BootInstant::now() }
    }
}

impl Aside {
    /// Returns the time until the settlements are tried again.
    fn due(&self) -> Duration {
        self.again_at.after(BootInstant::now())
    }

    fn take(&mut self) -> Vec<Settle> {
        std::mem::take(&mut self.settles)
    }

    fn put(&mut self, busy: Vec<Settle>) {
        let Some(first) = busy.first() else {
            if self.settles.is_empty() {
                self.pause = BUSY_PAUSE;
            }
            return;
        };
        tracing::warn!(task = %first.id, tasks = busy.len(), "attempts ended, but another transaction holds their tasks");
        self.settles.extend(busy);
        self.again_at = BootInstant::now().plus(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_BUSY_PAUSE);
    }
}

/// Keeps only the newest attempt of each task. While the store could not be reached, a task may
/// have been lost and leased again: only its newest attempt can count, and no task may be settled
/// twice in one call.
fn leave_out_the_lost(batch: &mut Vec<Settle>) {
    batch.sort_by(|one, other| (one.id, other.token).cmp(&(other.id, one.token)));
    batch.dedup_by_key(|settle| settle.id);
}

/// Splits a batch into parts of at most [`BATCH_BYTES`], except that a larger settlement forms a
/// part of its own.
fn bounded(batch: impl IntoIterator<Item = Settle>) -> VecDeque<Vec<Settle>> {
    let (mut parts, mut bytes) = (VecDeque::<Vec<Settle>>::new(), 0);
    for settle in batch {
        let more = settle.verdict.bytes();
        match parts.back_mut().filter(|_| bytes + more <= BATCH_BYTES) {
            Some(part) => {
                bytes += more;
                part.push(settle);
            }
            None => {
                bytes = more;
                parts.push_back(vec![settle]);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AttemptResult, Payload, TaskId, Token};

    fn settle(task: u128, token: u64) -> Settle {
        Settle {
            id: TaskId::from_uuid(uuid::Uuid::from_u128(task)),
            token: Token::new(token).unwrap(),
            verdict: AttemptResult::Done(None),
        }
    }

    #[test]
    fn of_two_attempts_at_a_task_the_newer_one_is_settled() {
        let mut batch = vec![settle(2, 5), settle(1, 3), settle(2, 7), settle(1, 4)];
        leave_out_the_lost(&mut batch);
        assert_eq!(batch, [settle(1, 4), settle(2, 7)]);
    }

    #[test]
    fn no_part_of_a_batch_is_larger_than_the_bound() {
        let with = |task, bytes: usize| Settle {
            verdict: AttemptResult::Done(Some(Payload::new(format!("\"{}\"", "x".repeat(bytes))).unwrap())),
            ..settle(task, 1)
        };
        let batch = [with(1, 600_000), with(2, 400_000), with(3, 100_000), with(4, 1_048_574), settle(5, 1)];
        let parts = bounded(batch);
        let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
        assert_eq!(sizes, [2, 1, 1, 1]);
        assert!(parts.iter().all(|part| {
            part.len() == 1 || part.iter().map(|settle| settle.verdict.bytes()).sum::<usize>() <= BATCH_BYTES
        }));
    }
}
