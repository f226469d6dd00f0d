//! Queue of calls that are executed together: in one statement, script or transaction. Calls that
//! arrive while one batch is executed form the next one, so a lone call never waits for others.
//!
//! The queue is data under the lock of its owner. The owner executes the batches, and decides which
//! calls need no queue.

use std::collections::VecDeque;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
use std::ops::{Deref, DerefMut};

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
use tokio::sync::oneshot;

/// Calls that wait to be executed, and the number of workers that execute them.
#[cfg(any(test, feature = "postgres", feature = "redis"))]
#[derive(Debug)]
pub(crate) struct BatchQueue<C> {
    pub(crate) calls: VecDeque<C>,
    workers: usize,
}

/// Size of a call, or maximum size of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchSize {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

/// Request of a caller that waits for the answer.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
#[derive(Debug)]
pub(crate) struct Pending<R, A> {
    request: R,
    reply: oneshot::Sender<A>,
}

#[cfg(any(test, feature = "postgres", feature = "redis"))]
impl<C> BatchQueue<C> {
    /// Adds a call. Returns whether the caller must start a worker, as in
    /// [`start_worker`](Self::start_worker).
    pub(crate) fn push(&mut self, call: C, max_workers: usize) -> bool {
        self.calls.push_back(call);
        self.start_worker(max_workers)
    }

    /// Registers a worker, unless there are `max` of them. A registered worker must take batches
    /// until there are none, or stop.
    pub(crate) fn start_worker(&mut self, max: usize) -> bool {
        let start = self.workers < max;
        self.workers += usize::from(start);
        start
    }

    /// Takes the next batch. Without calls, deregisters the worker.
    pub(crate) fn next_batch(&mut self, max: BatchSize, size: impl Fn(&C) -> BatchSize) -> Option<Vec<C>> {
        (!self.stop_if_empty()).then(|| take_batch(&mut self.calls, max, size))
    }

    /// Deregisters the worker if there are no calls; returns whether it did.
    pub(crate) fn stop_if_empty(&mut self) -> bool {
        let stop = self.calls.is_empty();
        self.workers -= usize::from(stop);
        stop
    }

    /// Deregisters the worker and returns the calls, so that no caller waits forever.
    pub(crate) fn stop_worker(&mut self) -> VecDeque<C> {
        self.workers -= 1;
        std::mem::take(&mut self.calls)
    }

    /// Whether there are no workers.
    #[cfg(any(test, feature = "postgres"))]
    pub(crate) const fn is_idle(&self) -> bool {
        self.workers == 0
    }
}

#[cfg(any(test, feature = "postgres", feature = "redis"))]
impl<C> Default for BatchQueue<C> {
    fn default() -> Self {
        Self { calls: VecDeque::new(), workers: 0 }
    }
}

impl BatchSize {
    /// Returns the limit of a batch whose calls are small.
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
    pub(crate) const fn count(count: usize) -> Self {
        Self { count, bytes: usize::MAX }
    }

    /// Returns the size of a call in a batch that is limited only by the number of calls.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) const fn one<C>(_: &C) -> Self {
        Self { count: 1, bytes: 0 }
    }
}

/// Takes one batch from the front: the first call, however large, and further ones as long as all
/// together stay within `max`.
pub(crate) fn take_batch<C>(
    calls: &mut VecDeque<C>,
    max: BatchSize,
    size: impl Fn(&C) -> BatchSize,
) -> Vec<C> {
    let (mut count, mut bytes) = (0_usize, 0_usize);
    let fits = |call: &&C| {
        let more = size(call);
        count += more.count;
        bytes += more.bytes;
        count <= max.count && bytes <= max.bytes
    };
    let calls_within = calls.iter().take_while(fits).count().max(1).min(calls.len());
    calls.drain(..calls_within).collect()
}

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
impl<R, A> Pending<R, A> {
    /// Returns a request and the receiver of its answer.
    pub(crate) fn new(request: R) -> (Self, oneshot::Receiver<A>) {
        let (reply, answer) = oneshot::channel();
        (Self { request, reply }, answer)
    }

    /// Whether the caller still waits for the answer.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn caller_waits(&self) -> bool {
        !self.reply.is_closed()
    }

    /// Answers the caller. A caller that no longer waits must act as if the answer was lost.
    pub(crate) fn answer(self, answer: A) {
        let _ = self.reply.send(answer);
    }

    /// Gives all callers the same answer.
    pub(crate) fn answer_all(calls: impl IntoIterator<Item = Self>, answer: &A)
    where
        A: Clone,
    {
        for call in calls {
            call.answer(answer.clone());
        }
    }
}

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
impl<R, A> Deref for Pending<R, A> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.request
    }
}

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
impl<R, A> DerefMut for Pending<R, A> {
    fn deref_mut(&mut self) -> &mut R {
        &mut self.request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a batch of at most 3 calls and 100 bytes.
    fn next(queue: &mut BatchQueue<usize>) -> Option<Vec<usize>> {
        queue.next_batch(BatchSize { count: 3, bytes: 100 }, |bytes| BatchSize { count: 1, bytes: *bytes })
    }

    #[test]
    fn a_batch_is_limited_by_count_and_bytes_except_for_its_first_call() {
        let mut queue = BatchQueue::default();
        assert!(queue.push(1, 1));
        for bytes in [1, 1, 1, 60, 40, 1, 101, 0] {
            assert!(!queue.push(bytes, 1), "there is a worker");
        }
        let batches: Vec<_> = std::iter::from_fn(|| next(&mut queue)).collect();
        assert_eq!(batches, [vec![1, 1, 1], vec![1, 60], vec![40, 1], vec![101], vec![0]]);
        assert!(queue.is_idle());
    }

    #[test]
    fn there_is_a_worker_as_long_as_there_are_calls_and_never_more_than_the_limit() {
        let mut queue = BatchQueue::default();
        assert!(queue.push(1, 2) && queue.push(2, 2) && !queue.push(3, 2));
        assert_eq!(next(&mut queue), Some(vec![1, 2, 3]));
        assert_eq!(next(&mut queue), None, "one worker ends");
        assert!(queue.push(4, 2), "another one starts while the first batch is executed");
        assert_eq!(queue.stop_worker(), [4]);
        assert_eq!(next(&mut queue), None);
        assert!(queue.is_idle());
    }
}
