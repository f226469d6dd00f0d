//! Attempts that release their slot while they wait for a lock, and take it again.

use std::sync::Arc;

use shuttle::future::{block_on, spawn, yield_now};
use shuttle::sync::atomic::{AtomicUsize, Ordering};

use super::subject::Slots;
use crate::simulated::maybe_cancelled;

const COUNT: usize = 2;

pub fn no_more_attempts_run_than_there_are_slots_and_none_is_lost() {
    block_on(async {
        let (slots, running) = (Slots::new(COUNT), Arc::new(AtomicUsize::new(0)));
        let attempts: Vec<_> = (0..3)
            .map(|_| {
                let (slots, running) = (slots.clone(), running.clone());
                spawn(async move {
                    let Some(slot) = slots.try_take() else { return };
                    enter(&running);
                    yield_now().await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    assert!(slot.release_to_wait());
                    yield_now().await;
                    // The attempt may be dropped while it waits for a slot.
                    if maybe_cancelled(slot.reacquire()).await.is_some() {
                        enter(&running);
                        yield_now().await;
                        running.fetch_sub(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for attempt in attempts {
            attempt.await.expect("no panic");
        }
        assert_eq!(slots.waiting(), 0, "no attempt waits any more");
        let all: Vec<_> = std::iter::from_fn(|| slots.try_take()).collect();
        assert_eq!(all.len(), COUNT, "all slots are free again");
    });
}

fn enter(running: &AtomicUsize) {
    assert!(running.fetch_add(1, Ordering::SeqCst) < COUNT, "more attempts run than there are slots");
}
