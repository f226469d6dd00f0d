//! Slots of a worker. An attempt that waits for the lock of its task occupies no slot.

use std::sync::{Arc, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::store::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::store::sync::{Mutex, MutexGuard};

/// Maximum number of attempts, in addition to the number of slots, that wait for locks.
const MAX_WAITING_BEYOND_SLOTS: usize = 64;

pub(super) struct Slots {
    count: usize,
    free: Arc<Semaphore>,
    /// Number of attempts that wait for the lock of their task, or hold it and wait for a slot.
    waiting: AtomicUsize,
    /// Notified when an attempt releases its slot to wait.
    pub(super) released: Notify,
    /// Notified when the attempts that wait for the lock of their task have to return the task.
    must_return: Notify,
}

/// Slot of one attempt, or its registration as a waiting attempt.
pub(super) struct Slot {
    slots: Arc<Slots>,
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    waits: AtomicBool,
    has_waited: AtomicBool,
}

impl Slots {
    pub(super) fn new(count: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(count));
        let (released, must_return) = (Notify::new(), Notify::new());
        Arc::new(Self { count, free, waiting: AtomicUsize::new(0), released, must_return })
    }

    /// Takes a free slot. Returns `None` while an attempt that holds its lock waits for a slot:
    /// that attempt goes first.
    pub(super) fn try_take(self: &Arc<Self>) -> Option<Slot> {
        let permit = self.free.clone().try_acquire_owned().ok()?;
        Some(Slot {
            slots: self.clone(),
            permit: Mutex::new(Some(permit)),
            waits: AtomicBool::new(false),
            has_waited: AtomicBool::new(false),
        })
    }

    /// Returns the number of slots that are occupied, reserved, or assigned to an attempt that has its lock.
    pub(super) fn occupied(&self) -> usize {
        self.count.saturating_sub(self.free.available_permits())
    }

    /// Returns the number of attempts that occupy no slot.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Makes every attempt that waits for the lock of its task return the task to its queue.
    pub(super) fn return_waiting(&self) {
        self.must_return.notify_waiters();
    }
}

impl Slot {
    /// Releases the slot to wait for a lock. Returns false if too many attempts wait already.
    pub(super) fn release_to_wait(&self) -> bool {
        let max = self.slots.count + MAX_WAITING_BEYOND_SLOTS;
        let waiting = &self.slots.waiting;
        let one_more = |waiting: usize| (waiting < max).then_some(waiting + 1);
        if waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return false;
        }
        self.waits.store(true, Ordering::Relaxed);
        self.has_waited.store(true, Ordering::Relaxed);
        drop(self.permit().take());
        self.slots.released.notify_one();
        true
    }

    /// Takes a slot again, with precedence over attempts that have not begun.
    pub(super) async fn reacquire(&self) {
        if self.permit().is_some() {
            return;
        }
        if let Ok(permit) = self.slots.free.clone().acquire_owned().await {
            *self.permit() = Some(permit);
        }
        self.stop_waiting();
    }

    /// Resolves when the attempt has to return its task instead of waiting for a lock.
    pub(super) async fn must_return(&self) {
        self.slots.must_return.notified().await;
    }

    pub(super) fn has_waited(&self) -> bool {
        self.has_waited.load(Ordering::Relaxed)
    }

    fn stop_waiting(&self) {
        if self.waits.swap(false, Ordering::Relaxed) {
            self.slots.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn permit(&self) -> MutexGuard<'_, Option<OwnedSemaphorePermit>> {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.stop_waiting();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_waiting_attempt_occupies_no_slot_and_returns_before_others() {
        let slots = Slots::new(1);
        let first = Arc::new(slots.try_take().unwrap());
        assert!(slots.try_take().is_none());
        assert!(first.release_to_wait());
        assert_eq!(slots.waiting(), 1);
        let second = slots.try_take().unwrap();
        let again = tokio::spawn({
            let first = first.clone();
            async move { first.reacquire().await }
        });
        tokio::task::yield_now().await;
        drop(second);
        assert!(slots.try_take().is_none(), "the slot belongs to the attempt that waited");
        again.await.unwrap();
        assert_eq!((slots.waiting(), slots.free.available_permits()), (0, 0));
        drop(first);
        assert_eq!(slots.free.available_permits(), 1);
    }

    #[tokio::test]
    async fn the_number_of_waiting_attempts_is_limited() {
        let slots = Slots::new(1);
        let mut waiting: Vec<_> = (0..=MAX_WAITING_BEYOND_SLOTS)
            .map(|_| {
                let slot = slots.try_take().unwrap();
                assert!(slot.release_to_wait());
                slot
            })
            .collect();
        let one_more = slots.try_take().unwrap();
        assert!(!one_more.release_to_wait());
        waiting.pop();
        assert!(one_more.release_to_wait());
    }
}
