//! Reports the results of attempts to the store. Attempts that end while one batch is in flight
//! form the next batch. No caller waits for an answer, so the queue is a channel.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::held_leases::HeldLeases;
use crate::client::context::Inner;
use crate::error::{Error, Result, StoreErrorKind};
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
/// First and longest delay between calls that send refused settlements again. The delay grows with each pass
/// over all of them in which the store accepts none.
const REFUSED_DELAYS: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];
/// Longest such delay on a service that limits requests, in poll intervals of the service.
const REFUSED_POLLS: u32 = 60;
/// Number of settlements refused one after the other from which on refused batches are not split: the store
/// may refuse everything. Also the number of refused settlements that are sent again at a time.
const MAX_REFUSALS: usize = 8;
/// Time for which the result of an attempt is kept although the store denies its settlement and accepts others.
/// A permission may be restored; a proxy that rejects the content of a result never accepts it.
const DENIED_FOR: Duration = Duration::from_mins(1);

/// Number of denials one after the other after which a settlement that was kept for that time is given up.
const MAX_DENIALS: u32 = 4;

/// Settles all attempts that arrive until the channel is closed. Continues after errors: a
/// settlement counts, however late, as long as no process has ended the lease. Only a worker that
/// has to end gives up.
pub(super) async fn run_completer(
    inner: Arc<Inner>,
    leases: Arc<HeldLeases>,
    mut completions: mpsc::UnboundedReceiver<Settle>,
    hard_stop: CancellationToken,
) {
    let (busy_tasks, refused) = (BusyTasks::default(), RefusedSettlements::new(inner.capabilities.poll));
    let backoff = RETRY_BACKOFF;
    let mut completer =
        Completer { inner, leases, hard_stop, backoff, final_attempts: 0, busy_tasks, refused };
    let (mut open, mut stopping) = (true, false);
    while open || completer.remaining_delay().is_some() {
        let mut batch = Vec::with_capacity(MAX_BATCH.count);
        let delay = completer.remaining_delay();
        tokio::select! {
            biased;
            received = completions.recv_many(&mut batch, MAX_BATCH.count), if open => {
                open = received > 0;
                if !open && stopping {
                    // From now on no settlement is added.
                    completer.refused.begin_final();
                }
            }
            () = completer.hard_stop.cancelled(), if !stopping => {
                stopping = true;
                completer.refused.begin_final();
            }
            () = tokio::time::sleep(delay.unwrap_or_default()), if delay.is_some() => {}
        }
        if completer.busy_tasks.remaining_delay().is_zero() {
            batch.extend(completer.busy_tasks.take());
        }
        completer.settle_all(batch).await;
        if completer.refused.remaining_delay().is_zero() {
            completer.retry_refused().await;
        }
        completer.give_up_if_final(open);
    }
}

struct Completer {
    inner: Arc<Inner>,
    leases: Arc<HeldLeases>,
    hard_stop: CancellationToken,
    backoff: ExponentialBackoff,
    final_attempts: u32,
    busy_tasks: BusyTasks,
    refused: RefusedSettlements,
}

impl Completer {
    /// Returns the time until settlements that were put aside are sent again; `None` if there are none.
    fn remaining_delay(&self) -> Option<Duration> {
        let busy = (!self.busy_tasks.settlements.is_empty()).then(|| self.busy_tasks.remaining_delay());
        let refused = (!self.refused.settlements.is_empty()).then(|| self.refused.remaining_delay());
        busy.into_iter().chain(refused).min()
    }

    /// Settles these attempts, or puts their settlements aside.
    async fn settle_all(&mut self, mut batch: Vec<Settle>) {
        keep_newest_attempt(&mut batch);
        let mut parts = split_by_size(batch);
        while let Some(part) = parts.pop_front() {
            for unsent in self.settle(part).await.into_iter().rev() {
                parts.push_front(unsent);
            }
        }
    }

    /// Sends a batch once, and returns the parts to send again: in halves, because a smaller call
    /// may succeed where this one failed.
    async fn settle(&mut self, mut batch: Vec<Settle>) -> Vec<Vec<Settle>> {
        let Err(error) = self.send(&batch).await else {
            self.backoff.reset();
            self.inner.availability.record_success();
            return Vec::new();
        };
        let tasks = batch.len();
        if error.is_retryable() {
            if !self.wait_for_retry(&error, tasks).await {
                return Vec::new();
            }
        } else if tasks == 1 {
            // The store may accept it in a moment: a failure must not replace the result now.
            self.refused.put(batch, &error);
            return Vec::new();
        } else if self.refused.in_a_row >= MAX_REFUSALS {
            self.refused.put(batch, &error);
            return Vec::new();
        } else {
            tracing::warn!(%error, tasks, "the store refused a batch of ended attempts; retrying with smaller batches");
        }
        let half = batch.split_off(tasks.div_ceil(2));
        if half.is_empty() { vec![batch] } else { vec![batch, half] }
    }

    /// Sends the first refused settlements again, each in a call of its own. If the store accepts all of
    /// them, sends the others too.
    async fn retry_refused(&mut self) {
        let (mut failed, mut accepted, mut sent) = (None, false, 0);
        let is_final = self.hard_stop.is_cancelled();
        // One that is refused again goes to the end, and is not sent twice.
        for _ in 0..MAX_REFUSALS.min(self.refused.settlements.len()) {
            let Some(next) = self.refused.settlements.pop_front() else { break };
            sent += 1;
            let Err(error) = self.send_refused(&next).await else {
                accepted = true;
                continue;
            };
            let unavailable = error.is_retryable();
            let is_denied = is_denial(&error) && self.may_be_accepted_later(&next);
            if unavailable || is_denied || !self.settle_as_failed(&next.settle, &error).await {
                self.refused.settlements.push_back(next);
                failed = Some(error);
            }
            if unavailable {
                self.refused.left_in_pass = 0;
                break;
            }
        }
        let Some(error) = failed else {
            self.refused.backoff.reset();
            let others = std::mem::take(&mut self.refused.settlements);
            return self.settle_all(others.into_iter().map(|refused| refused.settle).collect()).await;
        };
        let delay = error.retry_after().unwrap_or_default() + self.refused.delay_after_retry(accepted);
        let delay = if is_final { self.refused.final_delay(delay, sent, &error) } else { delay };
        self.refused.retry_at = BootInstant::now().plus(delay);
        self.inner.availability.record_failure("failed to report ended attempts; retrying", &error);
    }

    /// Sends a refused settlement again; several times before it is given up because it is denied: another
    /// server may answer, whose permissions are newer.
    async fn send_refused(&mut self, refused: &Refused) -> Result<()> {
        let mut attempts = 1;
        loop {
            let result = self.send(std::slice::from_ref(&refused.settle)).await;
            let Err(error) = &result else { return result };
            if !is_denial(error) || self.may_be_accepted_later(refused) || attempts == MAX_DENIALS {
                return result;
            }
            attempts += 1;
        }
    }

    /// Whether the store may accept a settlement later that it denies now: it has accepted no other one
    /// meanwhile, or the settlement was not refused for long.
    fn may_be_accepted_later(&self, refused: &Refused) -> bool {
        self.refused.in_a_row > 0 || refused.is_recent()
    }

    /// Gives up the settlements that were put aside, if the worker has to stop and has used its final
    /// attempts. Refused settlements are sent again as long as attempts may still end (`open`).
    fn give_up_if_final(&mut self, open: bool) {
        let tasks = self.busy_tasks.settlements.len();
        if tasks > 0 && self.final_attempts > MAX_FINAL_ATTEMPTS {
            self.busy_tasks.settlements.clear();
            tracing::error!(
                tasks,
                "attempts ended, but another transaction holds their tasks; the attempts will be repeated"
            );
        }
        if open {
            self.refused.final_attempts = 0;
        }
        let tasks = self.refused.settlements.len();
        if tasks > 0 && !open && self.refused.final_attempts > MAX_FINAL_ATTEMPTS {
            self.refused.settlements.clear();
            tracing::error!(
                tasks,
                "attempts ended, but the store refused to settle them; the attempts will be repeated"
            );
        }
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
    /// try could change that. If the store refuses that too, it refuses all settlements of the task for now.
    async fn settle_as_failed(&mut self, refused: &Settle, error: &Error) -> bool {
        let reason = Message::new(format!("its result cannot be kept: {error}"));
        let verdict = match &refused.result {
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
        let failed = Settle { result: verdict, ..refused.clone() };
        if self.send(std::slice::from_ref(&failed)).await.is_err() {
            return false;
        }
        tracing::error!(task = %refused.id, %error, "the store refused the result of a task");
        true
    }

    async fn send(&mut self, batch: &[Settle]) -> Result<()> {
        let settled = self.inner.tasks()?.settle(batch).await?;
        self.refused.in_a_row = 0;
        let mut busy = Vec::new();
        for (settle, settled) in batch.iter().zip(&settled) {
            match settled {
                Settled::Busy => busy.push(settle.clone()),
                Settled::Lost if settle.result != AttemptResult::Return => {
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

/// Returns whether the store denies the call, whatever it contains. An operator may change that.
fn is_denial(error: &Error) -> bool {
    matches!(error, Error::Store { kind: StoreErrorKind::NotPermitted | StoreErrorKind::Misconfigured, .. })
}

/// Settlements that the store has refused. The other settlements of the worker do not wait for them.
struct RefusedSettlements {
    settlements: VecDeque<Refused>,
    /// Number of settlements put aside since the store has last accepted one.
    in_a_row: usize,
    backoff: ExponentialBackoff,
    /// Delay after each retry of the current pass, and the number of settlements that the pass has still to
    /// send.
    delay: Duration,
    left_in_pass: usize,
    retry_at: BootInstant,
    /// Number of failed attempts since the worker has to stop.
    final_attempts: u32,
    /// Number of settlements that have not been sent since the worker has to stop. Some were never sent without
    /// others, so each of them is sent once more.
    unsent_finally: usize,
}

struct Refused {
    settle: Settle,
    since: BootInstant,
}

impl Refused {
    fn is_recent(&self) -> bool {
        BootInstant::now().after(self.since) < DENIED_FOR
    }
}

impl RefusedSettlements {
    fn new(poll: Duration) -> Self {
        let [first, longest] = REFUSED_DELAYS;
        // A service that limits requests has a long poll interval.
        let longest = if poll > longest { REFUSED_POLLS * poll } else { longest };
        let backoff = ExponentialBackoff::new(first.max(poll), longest);
        let (settlements, in_a_row, delay, left_in_pass, final_attempts) = Default::default();
        let unsent_finally = 0;
        Self {
            settlements,
            in_a_row,
            backoff,
            delay,
            left_in_pass,
            retry_at: BootInstant::now(),
            final_attempts,
            unsent_finally,
        }
    }

    /// Sends the settlements again at once, because the worker has to stop.
    fn begin_final(&mut self) {
        self.retry_at = BootInstant::now();
        self.unsent_finally = self.settlements.len();
    }

    /// Returns the delay after a failed retry of a worker that has to stop. The first settlements follow on each
    /// other without a delay, but results that arrive meanwhile are sent in between.
    fn final_delay(&mut self, delay: Duration, sent: usize, error: &Error) -> Duration {
        self.unsent_finally = self.unsent_finally.saturating_sub(sent);
        if self.unsent_finally > 0 && !error.is_retryable() {
            return Duration::ZERO;
        }
        self.final_attempts += 1;
        delay.min(MAX_FINAL_DELAY)
    }

    fn remaining_delay(&self) -> Duration {
        self.retry_at.after(BootInstant::now())
    }

    fn put(&mut self, refused: Vec<Settle>, error: &Error) {
        let Some(first) = refused.first() else { return };
        let (tasks, now) = (refused.len(), BootInstant::now());
        tracing::warn!(task = %first.id, tasks, %error, "the store refused to settle attempts; retrying later");
        let is_first = self.settlements.is_empty();
        self.in_a_row += tasks;
        self.settlements.extend(refused.into_iter().map(|settle| Refused { settle, since: now }));
        // A batch that was not split may contain settlements that the store accepts: they are sent soon.
        if is_first || tasks > 1 {
            self.backoff.reset();
            self.start_pass();
            self.retry_at = now.plus(self.delay);
        }
    }

    /// Returns the delay after a retry.
    fn delay_after_retry(&mut self, accepted: bool) -> Duration {
        self.left_in_pass = self.left_in_pass.saturating_sub(MAX_REFUSALS);
        if accepted {
            self.backoff.reset();
        }
        if accepted || self.left_in_pass == 0 {
            self.start_pass();
        }
        self.delay
    }

    fn start_pass(&mut self) {
        (self.delay, self.left_in_pass) = (jittered(self.backoff.next_delay()), self.settlements.len());
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
    let size = |settle: &Settle| BatchSize { count: 1, bytes: settle.result.bytes() };
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
            result: AttemptResult::Done(None),
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
            result: AttemptResult::Done(Some(Payload::new(format!("\"{}\"", "x".repeat(bytes))).unwrap())),
            ..settle(task, 1)
        };
        let batch = [with(1, 600_000), with(2, 400_000), with(3, 100_000), with(4, 1_048_574), settle(5, 1)];
        let parts = split_by_size(batch.to_vec());
        let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
        assert_eq!(sizes, [2, 1, 1, 1]);
        assert!(parts.iter().all(|part| {
            part.len() == 1
                || part.iter().map(|settle| settle.result.bytes()).sum::<usize>() <= MAX_BATCH.bytes
        }));
    }
}
