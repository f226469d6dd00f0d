//! Notifications through the client: a holder learns what other callers did to its lease long
//! before its next renewal, and a worker learns that its task was cancelled long before its next
//! heartbeat.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::client::{HandlerError, Leasehold, TaskContext, TaskType};
use crate::model::{Holder, LockName, Reason, TaskState, Ttl};
use crate::store::Store;
use crate::testing::Fixture;

/// Lease ttl; so long that the next renewal comes long after a case has failed.
const TTL: Duration = Duration::from_mins(30);
/// Timeout of a notification on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time after which a guard has subscribed, unless the machine is busy; in that case the guard
/// reads the lock once it has subscribed.
const SUBSCRIBED: Duration = Duration::from_secs(1);

/// Two clients of one engine: the first holds locks or runs tasks, the second intervenes.
struct Lab {
    one: Leasehold,
    two: Leasehold,
    _fixture: Fixture,
}

impl Lab {
    fn new(fixture: Fixture) -> Self {
        let client = |store: &Arc<dyn Store>| Leasehold::with_store(store.clone()).expect("a client");
        let (one, two) = (client(&fixture.one), client(&fixture.two));
        Self { one, two, _fixture: fixture }
    }
}

/// A forced release ends the guard at once.
pub async fn a_holder_is_notified_of_a_forced_release(fixture: Fixture) {
    let lab = Lab::new(fixture);
    let guard = lab.one.lock("a").ttl(TTL).acquire().await.expect("a is free");
    tokio::time::sleep(SUBSCRIBED).await;
    let reason = Reason::new("stuck").expect("a good reason");
    lab.two.locks().force_release(&name(), guard.token(), admin(), reason).await.expect("it was held");
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("the holder learns it");
}

/// The lock is taken before the guard has subscribed: the guard reads the lock once it has
/// subscribed.
pub async fn a_holder_learns_of_changes_before_its_subscription(fixture: Fixture) {
    let lab = Lab::new(fixture);
    let guard = lab.one.lock("a").ttl(TTL).acquire().await.expect("a is free");
    let reason = Reason::new("stuck").expect("a good reason");
    lab.two.locks().force_release(&name(), guard.token(), admin(), reason).await.expect("it was held");
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("the holder learns it");
}

/// Another client sets a shorter TTL before the guard has subscribed. The guard renews the lease soon: by
/// the TTL that it knows it would renew only after the end of the lease.
pub async fn a_holder_learns_of_a_shorter_ttl_before_its_subscription(fixture: Fixture) {
    let lab = Lab::new(fixture);
    let guard = lab.one.lock("a").ttl(TTL).acquire().await.expect("a is free");
    let shorter = Some(Ttl::from_secs(60));
    let locks = lab.two.locks();
    locks.renew(&name(), guard.lease_id(), guard.token(), shorter).await.expect("it is held");
    let renewed_by_the_guard = async {
        while locks.status(&name()).await.expect("the store answers").holders[0].renewals < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, renewed_by_the_guard).await.expect("the holder learns it");
    guard.release().await.expect("it was held until here");
}

/// A request to stop reaches the guard at once, and the lease stays held.
pub async fn a_holder_is_notified_of_a_release_request(fixture: Fixture) {
    let lab = Lab::new(fixture);
    let guard = lab.one.lock("a").ttl(TTL).acquire().await.expect("a is free");
    tokio::time::sleep(SUBSCRIBED).await;
    let reason = Some(Reason::new("a deploy waits").expect("a good reason"));
    assert_eq!(
        lab.two.locks().request_release(&name(), admin(), reason.clone()).await.expect("it is held"),
        1
    );
    let asked =
        tokio::time::timeout(PATIENCE, guard.release_requested()).await.expect("the holder learns it");
    assert_eq!((asked.by, asked.reason), (admin(), reason));
    guard.release().await.expect("it was held until here");
}

/// Another client releases the lease by its id and token.
pub async fn a_holder_is_notified_of_a_release_by_another_client(fixture: Fixture) {
    let lab = Lab::new(fixture);
    let guard = lab.one.lock("a").ttl(TTL).acquire().await.expect("a is free");
    tokio::time::sleep(SUBSCRIBED).await;
    lab.two.locks().release(&name(), guard.lease_id(), guard.token()).await.expect("it was held");
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("the holder learns it");
}

#[derive(Serialize, Deserialize)]
struct Long;

impl TaskType for Long {
    const QUEUE: &'static str = "long";
    const TTL: Duration = TTL;
}

/// A cancelled task is stopped at once, not at the worker's next heartbeat.
pub async fn a_worker_is_notified_of_a_cancellation(fixture: Fixture) {
    if fixture.one.tasks().is_none() {
        return;
    }
    let lab = Lab::new(fixture);
    let endless = |_: TaskContext<Long>| std::future::pending::<Result<(), HandlerError>>();
    let worker = lab.one.worker().handle(endless);
    let worker = worker.start().expect("a worker");
    let id = lab.two.enqueue(&Long).await.expect("added").id;
    let tasks = lab.two.tasks().expect("it has tasks");
    let until = async |state| {
        while tasks.get(id).await.expect("it is there").state != state {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, until(TaskState::Running)).await.expect("it runs");
    tokio::time::sleep(SUBSCRIBED).await;
    tasks.cancel(id, admin(), None).await.expect("it runs");
    tokio::time::timeout(PATIENCE, until(TaskState::Aborted)).await.expect("the worker learns it");
    worker.stop(Duration::ZERO).await;
}

fn name() -> LockName {
    LockName::new("a").expect("a good name in a test")
}

fn admin() -> Holder {
    Holder::new("admin").expect("a good holder")
}
