//! Violations that simulations have found, each as its shortest sequence.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::{Holder, Reason};
use leasehold::store::Store;
use leasehold::store::memory::MemoryStore;
use leasehold::testing::{Fault, FaultyStore, Simulation};

/// Runs the work under a virtual clock.
fn in_virtual_time<T>(work: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let _simulation = Simulation::start(1, tokio::time::Instant::now(), None);
        work.await
    })
}

/// A waiter repeats its request because an answer was lost. Meanwhile it is granted the lock, and loses it
/// by force: the answer to the repetition is newer than the grant.
#[test]
fn a_grant_that_has_ended_before_the_answer_of_the_store_is_not_believed() {
    in_virtual_time(async {
        let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let faulty = FaultyStore::new(memory.clone());
        let operator = Leasehold::with_store(memory).unwrap();
        let waiter = Leasehold::with_store(faulty.clone()).unwrap();
        let first = operator.lock("l").acquire().await.unwrap();
        faulty.plan([Fault::None, Fault::LoseAnswer]);
        let waiting = tokio::spawn(waiter.lock("l").wait(Duration::from_mins(1)).acquire());
        // The ticket is refreshed after a third of its 10 s.
        tokio::time::sleep(Duration::from_millis(3_350)).await;
        assert_eq!(faulty.sent().len(), 2, "the refresh was sent once");
        first.release().await.unwrap();
        let granted = operator.locks().status("l").await.unwrap().holders[0].token;
        let (by, reason) = (Holder::new("operator").unwrap(), Reason::new("test").unwrap());
        operator.locks().force_release("l", granted, by, reason).await.unwrap();
        let second = operator.lock("l").acquire().await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(
            faulty.sent().len() > 2 && !waiting.is_finished(),
            "the waiter believes in a lease that has ended"
        );
        let token = second.token();
        second.release().await.unwrap();
        assert!(waiting.await.unwrap().unwrap().token() > token);
    });
}
