//! Reports the results of attempts to the store. Attempts that end while one batch is in flight
//! form the next batch. No caller waits for an answer, so the queue is a channel.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::held_leases::HeldLeases;
use crate::client::context::Inner;
use crate::error::{Error, Result};
use crate::model::{AttemptResult, Message, Settle, Settled};
use crate::store::BootInstant;
use crate::store::backoff::{ExponentialBackoff, jittered};
use crate::store::batch_queue::{BatchSize, take_batch};

/// Maximum number of settlements, and of bytes of results and messages, in one call, unless a single
/// settlement has more.
const MAX_BATCH: BatchSize = BatchSize { count: 500, bytes: 1 << 20 };
const RETRY_BACKOFF: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(50), Duration::from_secs(5));
const MAX_FINAL_DELAY: Duration = Duration::from_millis(500);
const MAX_FINAL_ATTEMPTS: u32 = 3;
/// Delays before a task that another transaction holds is tried again.
const BUSY_BACKOFF: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// Settles all attempts that arrive until the channel is closed. Continues after errors: a
/// settlement counts, however late, as long as no process has ended the lease. Only a worker that
/// has to end gives up.
pub(super) async fn run_completer(
    inner: Arc<Inner>,
    leases: Arc<HeldLeases>,
    mut completions: mpsc::UnboundedReceiver<Settle>,
    hard_stop: CancellationToken,
) {
    let busy_tasks = BusyTasks::default();
    let mut completer =
        Completer { inner, leases, hard_stop, backoff: RETRY_BACKOFF, final_attempts: 0, busy_tasks };
    let mut open = true;
    while open || !completer.busy_tasks.settlements.is_empty() {
        let mut batch = Vec::with_capacity(MAX_BATCH.count);
        tokio::select! {
            biased;
            received = completions.recv_many(&mut batch, MAX_BATCH.count), if open => open = received > 0,
            () = tokio::time::sleep(completer.busy_tasks.remaining_delay()), if !completer.busy_tasks.settlements.is_empty() => {}
        }
        if completer.busy_tasks.remaining_delay().is_zero() {
            batch.extend(completer.busy_tasks.take());
        }
        keep_newest_attempt(&mut batch);
        let mut parts = split_by_size(batch);
        while let Some(part) = parts.pop_front() {
            for unsent in completer.settle(part).await.into_iter().rev() {
                parts.push_front(unsent);
            }
        }
        if !completer.busy_tasks.settlements.is_empty() && completer.final_attempts > MAX_FINAL_ATTEMPTS {
            let tasks = completer.busy_tasks.settlements.len();
            tracing::error!(
                tasks,
                "attempts ended, but another transaction holds their tasks; the attempts will be repeated"
            );
            return;
        }
    }
}

struct Completer {
    inner: Arc<Inner>,
    leases: Arc<HeldLeases>,
    hard_stop: CancellationToken,
    backoff: ExponentialBackoff,
    final_attempts: u32,
    busy_tasks: BusyTasks,
}

impl Completer {
    /// Sends a batch once, and returns the parts to send again: in halves, because a smaller call
    /// may succeed where this one failed.
    async fn settle(&mut self, mut batch: Vec<Settle>) -> Vec<Vec<Settle>> {
        let Err(error) = self.send(&batch).await else {
            self.backoff.reset();
            self.inner.availability.record_success();
            return Vec::new();
        };
        let refused = !error.is_retryable();
        if refused && batch.len() == 1 && self.settle_as_failed(&batch[0], &error).await {
            return Vec::new();
        }
        let tasks = batch.len();
        let too_large = refused && tasks > 1;
        if !too_large && !self.wait_for_retry(&error, tasks).await {
            return Vec::new();
        }
        if too_large {
            tracing::warn!(%error, tasks, "the store refused a batch of ended attempts; retrying with smaller batches");
        }
        let half = batch.split_off(tasks.div_ceil(2));
        if half.is_empty() { vec![batch] } else { vec![batch, half] }
    }

    /// Waits before the next call. Returns false if the worker has to stop and has used its final
    /// attempts.
    async fn wait_for_retry(&mut self, error: &Error, tasks: usize) -> bool {
        // A store that refuses requests until a certain time is not asked before that time.
        let mut delay = error.retry_after().unwrap_or_default() + jittered(self.backoff.next_delay());
        let is_final = self.hard_stop.is_cancelled();
        if is_final {
            self.final_attempts += 1;
            if self.final_attempts > MAX_FINAL_ATTEMPTS {
                tracing::error!(%error, tasks, "attempts ended, but were not reported to the store; they will be repeated");
                return false;
            }
            delay = delay.min(MAX_FINAL_DELAY);
        }
        self.inner.availability.record_failure("failed to report ended attempts; retrying", error);
        let wait = tokio::time::sleep(delay);
        if is_final {
            wait.await;
        } else {
            self.hard_stop.run_until_cancelled(wait).await;
        }
        true
    }

    /// Settles an attempt without its result, after the store refused the settlement; returns
    /// whether the store accepted that. If it did, the result itself cannot be stored, and no later
    /// try could change that. If the store refuses that too, it refuses everything for now.
    async fn settle_as_failed(&mut self, refused: &Settle, error: &Error) -> bool {
        let reason = Message::new(format!("its result cannot be kept: {error}"));
        let verdict = match &refused.verdict {
            AttemptResult::Done(Some(_)) | AttemptResult::Fail(_) => AttemptResult::Fail(reason),
            AttemptResult::Retry(_, delay) => AttemptResult::Retry(reason, *delay),
            AttemptResult::Abort(Some(_)) => AttemptResult::Abort(Some(reason)),
            AttemptResult::Done(None)
            | AttemptResult::Abort(None)
            | AttemptResult::Snooze(_)
            | AttemptResult::Defer(_)
            | AttemptResult::Return => {
                return false;
            }
        };
        let failed = Settle { verdict, ..refused.clone() };
        if self.send(std::slice::from_ref(&failed)).await.is_err() {
            return false;
        }
        tracing::error!(task = %refused.id, %error, "the store refused the result of a task");
        true
    }

    async fn send(&mut self, batch: &[Settle]) -> Result<()> {
        let settled = self.inner.tasks()?.settle(batch).await?;
        let mut busy = Vec::new();
        for (settle, settled) in batch.iter().zip(&settled) {
            match settled {
                Settled::Busy => busy.push(settle.clone()),
                Settled::Lost if settle.verdict != AttemptResult::Return => {
                    tracing::warn!(task = %settle.id, token = %settle.token, "an attempt ended after its lease was lost; it does not count");
                }
                Settled::Lost | Settled::Now(_) => {}
            }
        }
        let ended = batch.iter().zip(&settled).filter(|(_, settled)| !matches!(settled, Settled::Busy));
        self.leases.remove(ended.map(|(settle, _)| (settle.id, settle.token)));
        if !busy.is_empty() && self.hard_stop.is_cancelled() {
            self.final_attempts += 1;
        }
        self.busy_tasks.put(busy);
        Ok(())
    }
}

/// Settlements whose tasks are held by another transaction.
struct BusyTasks {
    settlements: Vec<Settle>,
    backoff: ExponentialBackoff,
    retry_at: BootInstant,
}

impl Default for BusyTasks {
    fn default() -> Self {
        Self { settlements: Vec::new(), backoff: BUSY_BACKOFF, retry_at: BootInstant::now() }
    }
}

impl BusyTasks {
    fn remaining_delay(&self) -> Duration {
        self.retry_at.after(BootInstant::now())
    }

    fn take(&mut self) -> Vec<Settle> {
        std::mem::take(&mut self.settlements)
    }

    fn put(&mut self, busy: Vec<Settle>) {
        let Some(first) = busy.first() else {
            if self.settlements.is_empty() {
                self.backoff.reset();
            }
            return;
        };
        tracing::warn!(task = %first.id, tasks = busy.len(), "attempts ended, but another transaction holds their tasks");
        self.settlements.extend(busy);
        self.retry_at = BootInstant::now().plus(self.backoff.next_delay());
    }
}

/// Keeps only the newest attempt of each task. While the store could not be reached, a task may
/// have been lost and leased again: only its newest attempt can count, and no task may be settled
/// twice in one call.
fn keep_newest_attempt(batch: &mut Vec<Settle>) {
    batch.sort_by(|one, other| (one.id, other.token).cmp(&(other.id, one.token)));
    batch.dedup_by_key(|settle| settle.id);
}

/// Splits a batch into parts of at most [`MAX_BATCH`], except that a larger settlement forms a part
/// of its own.
fn split_by_size(batch: Vec<Settle>) -> VecDeque<Vec<Settle>> {
    let (mut rest, mut parts) = (VecDeque::from(batch), VecDeque::new());
    let size = |settle: &Settle| BatchSize { count: 1, bytes: settle.verdict.bytes() };
    while !rest.is_empty() {
        parts.push_back(take_batch(&mut rest, MAX_BATCH, size));
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
    fn of_two_attempts_at_a_task_the_newer_one_is_completed() {
        let mut batch = vec![settle(2, 5), settle(1, 3), settle(2, 7), settle(1, 4)];
        keep_newest_attempt(&mut batch);
        assert_eq!(batch, [settle(1, 4), settle(2, 7)]);
    }

    #[test]
    fn no_part_of_a_batch_is_larger_than_the_bound() {
        let with = |task, bytes: usize| Settle {
            verdict: AttemptResult::Done(Some(Payload::new(format!("\"{}\"", "x".repeat(bytes))).unwrap())),
            ..settle(task, 1)
        };
        let batch = [with(1, 600_000), with(2, 400_000), with(3, 100_000), with(4, 1_048_574), settle(5, 1)];
        let parts = split_by_size(batch.to_vec());
        let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
        assert_eq!(sizes, [2, 1, 1, 1]);
        assert!(parts.iter().all(|part| {
            part.len() == 1
                || part.iter().map(|settle| settle.verdict.bytes()).sum::<usize>() <= MAX_BATCH.bytes
        }));
    }
}
