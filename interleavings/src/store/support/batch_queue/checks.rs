//! Callers that add calls while workers execute batches of them.

use std::sync::Arc;

use shuttle::future::{JoinHandle, block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;

use super::subject::{BatchQueue, BatchSize, Pending};
use crate::simulated::maybe_cancelled;

type Call = Pending<u32, u32>;

/// A queue with its owner, as the engines use it.
#[derive(Default)]
struct Owner {
    queue: Mutex<BatchQueue<Call>>,
    executed: Mutex<Vec<u32>>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

const MAX: BatchSize = BatchSize::count(2);

impl Owner {
    async fn call(self: &Arc<Self>, number: u32, max_workers: usize) -> Option<u32> {
        let (call, answer) = Pending::new(number);
        let start = self.queue.lock().expect("no panic").push(call, max_workers);
        if start {
            let worker = spawn(self.clone().work());
            self.workers.lock().expect("no panic").push(worker);
        }
        answer.await.ok()
    }

    async fn work(self: Arc<Self>) {
        loop {
            // A connection may break: then the calls fail, and the next call starts another worker.
            if thread_rng().gen_ratio(1, 8) {
                drop(self.queue.lock().expect("no panic").stop_worker());
                return;
            }
            let Some(batch) = self.queue.lock().expect("no panic").next_batch(MAX, BatchSize::one) else {
                return;
            };
            assert!(!batch.is_empty() && batch.len() <= 2);
            yield_now().await;
            for call in batch {
                let number = *call;
                self.executed.lock().expect("no panic").push(number);
                call.answer(number);
            }
        }
    }
}

pub fn no_call_is_lost_or_executed_twice_with_one_worker() {
    every_call_is_answered(1);
}

pub fn no_call_is_lost_or_executed_twice_with_two_workers() {
    every_call_is_answered(2);
}

fn every_call_is_answered(max_workers: usize) {
    let owner = Arc::new(Owner::default());
    block_on(async {
        let callers: Vec<_> = (0..4)
            .map(|number| {
                let owner = owner.clone();
                spawn(async move { (number, maybe_cancelled(owner.call(number, max_workers)).await) })
            })
            .collect();
        for caller in callers {
            let (number, answer) = caller.await.expect("no panic");
            let executed = owner.executed.lock().expect("no panic").clone();
            let times = executed.iter().filter(|other| **other == number).count();
            match answer {
                Some(Some(answer)) => assert_eq!((answer, times), (number, 1), "its own answer, once"),
                Some(None) => assert_eq!(times, 0, "a failed call is not executed"),
                None => assert!(times <= 1),
            }
        }
        for _ in 0..2 {
            let workers = std::mem::take(&mut *owner.workers.lock().expect("no panic"));
            for worker in workers {
                worker.await.expect("no panic");
            }
        }
    });
    let queue = owner.queue.lock().expect("no panic");
    assert!(queue.calls.is_empty() && queue.is_idle(), "nothing remains");
}
