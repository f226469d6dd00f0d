//! Order of the calls for one key, such as a lease or a lock: one call at a time, first come, first
//! served except for urgent ones, even if callers are dropped.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError};

use tokio::sync::oneshot;

use crate::store::support::sync::{Mutex, MutexGuard};

/// Minimum number of keys at which unused ones are removed.
const CLEANUP_AT: usize = 1024;

/// Calls that have not ended, by key, and the state that the calls for one key pass on to each other.
#[derive(Debug)]
pub struct InOrder<K, S = ()>(Arc<Mutex<Keys<K, S>>>);

#[derive(Debug)]
struct Keys<K, S> {
    by_key: HashMap<K, Calls<S>>,
    /// Number of keys at which unused ones are removed. At least twice the number that the last
    /// clean-up left, so that clean-ups take constant time per call on average.
    cleanup_at: usize,
}

#[derive(Debug)]
struct Calls<S> {
    /// State, unless a call has it.
    idle: Option<S>,
    /// Calls that wait. A dropped one is skipped.
    waiting: VecDeque<oneshot::Sender<S>>,
}

/// State that the calls for one key pass on to each other.
pub trait KeptState: Default {
    /// Returns whether the state is kept while no call uses it.
    fn keep(&mut self) -> Keep;
}

/// Whether a state is kept while no call uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// It is kept.
    Yes,
    /// It is a cache: dropped at random if there are many.
    IfRoom,
    /// It is dropped.
    No,
}

impl KeptState for () {
    fn keep(&mut self) -> Keep {
        Keep::No
    }
}

/// Turn of a call, with the state that earlier calls left. Dropping it lets the next call begin.
#[derive(Debug)]
pub struct Turn<K: Eq + Hash, S: KeptState = ()> {
    order: InOrder<K, S>,
    key: K,
    /// Receives the state; `None` once the call has begun.
    waits: Option<oneshot::Receiver<S>>,
    state: S,
}

impl<K: Eq + Hash + Clone, S: KeptState> InOrder<K, S> {
    /// Puts a call behind the earlier calls for this key: at once, not when the returned future is
    /// first polled. The future resolves when all of them have ended. Dropping it gives the place up.
    pub fn enter(&self, key: K) -> impl Future<Output = Turn<K, S>> + use<K, S> {
        Self::wait_for_turn(self.enqueue(key, VecDeque::push_back))
    }

    /// Puts a call before those for this key that wait, like [`enter`](Self::enter). For calls that must not be
    /// delayed by many others.
    pub fn enter_first(&self, key: K) -> impl Future<Output = Turn<K, S>> + use<K, S> {
        Self::wait_for_turn(self.enqueue(key, VecDeque::push_front))
    }

    async fn wait_for_turn(mut turn: Turn<K, S>) -> Turn<K, S> {
        if let Some(waits) = &mut turn.waits {
            // The sender is dropped only with the map, to which this call has a reference.
            turn.state = waits.await.unwrap_or_default();
            turn.waits = None;
        }
        turn
    }

    fn enqueue(&self, key: K, push: fn(&mut VecDeque<oneshot::Sender<S>>, oneshot::Sender<S>)) -> Turn<K, S> {
        let mut keys = self.keys();
        let order = self.clone();
        if let Some(calls) = keys.by_key.get_mut(&key) {
            if let Some(state) = calls.idle.take() {
                return Turn { order, key, waits: None, state };
            }
            let (next, waits) = oneshot::channel();
            push(&mut calls.waiting, next);
            return Turn { order, key, waits: Some(waits), state: S::default() };
        }
        keys.clean_up();
        keys.by_key.insert(key.clone(), Calls { idle: None, waiting: VecDeque::new() });
        Turn { order, key, waits: None, state: S::default() }
    }
}

impl<K, S> InOrder<K, S> {
    fn keys(&self) -> MutexGuard<'_, Keys<K, S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, S> Clone for InOrder<K, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, S> Default for InOrder<K, S> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Keys { by_key: HashMap::new(), cleanup_at: CLEANUP_AT })))
    }
}

impl<K: Eq + Hash, S: KeptState> Keys<K, S> {
    fn clean_up(&mut self) {
        if self.by_key.len() >= self.cleanup_at {
            self.by_key.retain(|_, calls| match calls.idle.as_mut().map(S::keep) {
                None | Some(Keep::Yes) => true,
                Some(Keep::IfRoom) => fastrand::bool(),
                Some(Keep::No) => false,
            });
            self.cleanup_at = CLEANUP_AT.max(2 * self.by_key.len());
        }
    }

    /// Gives the state to the next call; without one, keeps or drops it.
    fn pass_on(&mut self, key: &K, mut state: S) {
        let Some(calls) = self.by_key.get_mut(key) else { return };
        while let Some(next) = calls.waiting.pop_front() {
            match next.send(state) {
                Ok(()) => return,
                Err(unsent) => state = unsent,
            }
        }
        if state.keep() == Keep::No {
            self.by_key.remove(key);
        } else {
            calls.idle = Some(state);
        }
    }
}

impl<K: Eq + Hash, S: KeptState> Deref for Turn<K, S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.state
    }
}

impl<K: Eq + Hash, S: KeptState> DerefMut for Turn<K, S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state
    }
}

impl<K: Eq + Hash, S: KeptState> Drop for Turn<K, S> {
    fn drop(&mut self) {
        // States are sent and taken back under this lock, so none is lost in between.
        let mut keys = self.order.keys();
        let state = match &mut self.waits {
            None => Some(std::mem::take(&mut self.state)),
            Some(waits) => {
                waits.close();
                waits.try_recv().ok()
            }
        };
        if let Some(state) = state {
            keys.pass_on(&self.key, state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::*;

    /// Kept while it is not zero.
    impl KeptState for u32 {
        fn keep(&mut self) -> Keep {
            if *self == 0 { Keep::No } else { Keep::Yes }
        }
    }

    impl KeptState for String {
        fn keep(&mut self) -> Keep {
            Keep::IfRoom
        }
    }

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn calls_begin_one_at_a_time_in_the_order_in_which_they_were_enqueued() {
        let order = InOrder::<u8>::default();
        let (first, second, third) = (order.enter(1), order.enter(1), order.enter(1));
        let (mut first, mut second, mut third) = (pin!(first), pin!(second), pin!(third));
        assert!(poll(third.as_mut()).is_none(), "the place counts, not the first poll");
        let turn = poll(first.as_mut()).expect("the first call begins");
        assert!(poll(second.as_mut()).is_none());
        let other = poll(pin!(order.enter(2))).expect("another key is independent");
        drop(turn);
        assert!(poll(third.as_mut()).is_none());
        let turn = poll(second.as_mut()).expect("the second call is next");
        drop(turn);
        drop(poll(third.as_mut()).expect("the third call is next"));
        drop(other);
        assert!(order.keys().by_key.is_empty(), "no entry remains");
    }

    #[test]
    fn an_urgent_call_begins_before_those_that_wait() {
        let order = InOrder::<u8>::default();
        let first = poll(pin!(order.enter(1))).expect("the first call begins");
        let (mut second, mut urgent) = (pin!(order.enter(1)), pin!(order.enter_first(1)));
        assert!(poll(urgent.as_mut()).is_none(), "the first call has not ended");
        drop(first);
        assert!(poll(second.as_mut()).is_none());
        drop(poll(urgent.as_mut()).expect("the urgent call is next"));
        drop(poll(second.as_mut()).expect("the second call is next"));
        assert!(order.keys().by_key.is_empty(), "no entry remains");
    }

    #[test]
    fn a_dropped_call_neither_blocks_nor_overtakes() {
        let order = InOrder::<u8>::default();
        let first = poll(pin!(order.enter(1))).expect("the first call begins");
        let dropped = order.enter(1);
        let mut third = pin!(order.enter(1));
        drop(dropped);
        assert!(poll(third.as_mut()).is_none(), "the first call has not ended");
        let granted = order.enter(1);
        let fifth = order.enter(1);
        drop(first);
        drop(poll(third.as_mut()).expect("the dropped call is skipped"));
        drop(granted); // Its turn has come, but it was never polled.
        drop(poll(pin!(fifth)).expect("the turn is passed on"));
        assert!(order.keys().by_key.is_empty(), "no entry remains");
    }

    #[test]
    fn the_state_is_passed_on_also_by_a_call_that_is_dropped_and_kept_as_long_as_needed() {
        let order = InOrder::<u8, u32>::default();
        let mut first = poll(pin!(order.enter(1))).expect("the first call begins");
        let (dropped, third) = (order.enter(1), order.enter(1));
        *first = 7;
        drop(first);
        drop(dropped);
        assert_eq!(*poll(pin!(third)).expect("the third call begins"), 7);
        let mut last = poll(pin!(order.enter(1))).expect("no other call has begun");
        assert_eq!(std::mem::take(&mut *last), 7);
        drop(last);
        assert!(order.keys().by_key.is_empty(), "the state is not needed");
    }

    #[test]
    fn of_many_unused_states_those_that_are_only_a_cache_are_dropped() {
        let order = InOrder::<usize, String>::default();
        let held = poll(pin!(order.enter(usize::MAX))).expect("the first call begins");
        for key in 0..10 * CLEANUP_AT {
            drop(poll(pin!(order.enter(key))));
        }
        assert!(order.keys().by_key.len() <= 2 * CLEANUP_AT);
        let mut next = pin!(order.enter(usize::MAX));
        assert!(poll(next.as_mut()).is_none(), "a key in use is kept");
        drop(held);
        assert!(poll(next.as_mut()).is_some());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_two_calls_run_together_when_some_are_dropped_at_any_time() {
        let order = InOrder::<u8, u32>::default();
        let running = Arc::new(tokio::sync::Mutex::new(()));
        let calls = (0..200_u64).map(|number| {
            let (turn, running) = (order.enter(1), running.clone());
            tokio::spawn(async move {
                let call = async {
                    let mut turn = turn.await;
                    let alone = running.try_lock();
                    *turn += 1;
                    tokio::task::yield_now().await;
                    alone.is_ok()
                };
                let timeout = if number % 7 == 0 { Duration::MAX } else { Duration::from_micros(number) };
                tokio::time::timeout(timeout, call).await.unwrap_or(true)
            })
        });
        for call in calls.collect::<Vec<_>>() {
            assert!(call.await.unwrap());
        }
        let mut last = order.enter(1).await;
        assert!(*last >= 29, "no call without a timeout was lost");
        *last = 0;
        drop(last);
        assert!(order.keys().by_key.is_empty());
    }
}
