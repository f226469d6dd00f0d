//! Roles that the store protocol requires.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{
    Cancel, FinishedFilter, ForceRelease, Holder, LockOp, Outcome, QueueName, Reason, RequestRelease, Sweep,
    TaskId, TaskOp, Timestamp, Token,
};
use leasehold::store::{ListLocks, ListTasks, Store};
use leasehold::{Error, Leasehold, Result};
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role};
use uuid::Uuid;

use super::support::{Served, acquire, lease_id, name, open};

struct Lab {
    served: Served,
    token_store: TokenStore,
}

impl Lab {
    async fn new() -> Self {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let token_store = TokenStore::new(leasehold.clone());
        let tokens = Access::Tokens(Vec::new());
        Self { served: Served::with(leasehold, tokens, "127.0.0.1:0".parse().unwrap()), token_store }
    }

    async fn as_a(&self, role: Role) -> Arc<dyn Store> {
        let token = self.token_store.create(&role.to_string(), role, None).await.unwrap();
        open(&format!("http://{}@{}", token.text, self.served.address)).await
    }
}

fn holder() -> Holder {
    Holder::new("ada").unwrap()
}

#[track_caller]
fn is_refused<T: std::fmt::Debug>(answer: Result<T>, needs: &str) {
    let error = answer.unwrap_err();
    assert_eq!(error.code(), "STORE_NOT_PERMITTED", "{error}");
    assert!(error.to_string().contains(needs), "{error}");
}

#[tokio::test]
async fn each_role_may_do_what_it_is_for_and_no_more() {
    let lab = Lab::new().await;
    let roles = [Role::Reader, Role::Worker, Role::Operator, Role::Admin];
    let [reader, worker, operator, admin] = roles.map(|role| lab.as_a(role));
    let (reader, worker) = (reader.await, worker.await);
    let (operator, admin) = (operator.await, admin.await);
    let lock = name("lock");

    assert!(reader.locks().get(&lock).await.unwrap().is_none());
    assert!(reader.locks().list(&ListLocks::default()).await.unwrap().items.is_empty());
    assert!(reader.tasks().unwrap().list(&ListTasks::default()).await.unwrap().items.is_empty());
    let request = acquire(lease_id(), Duration::from_secs(30));
    is_refused(
        reader.locks().apply(&lock, &request).await,
        "'reader' has the role reader; this operation requires the role worker",
    );
    is_refused(reader.locks().sweep(1).await, "requires the role worker");
    is_refused(reader.tasks().unwrap().recover(1).await, "requires the role worker");

    let granted = worker.locks().apply(&lock, &request).await.unwrap();
    let Outcome::Granted(lease) = granted else { panic!("{granted:?}") };
    let request = LockOp::RequestRelease(RequestRelease { token: None, by: holder(), reason: None });
    is_refused(worker.locks().apply(&lock, &request).await, "requires the role operator");
    let task = TaskId::from_uuid(Uuid::now_v7());
    let cancel = TaskOp::Cancel(Cancel { by: holder(), reason: None });
    is_refused(worker.tasks().unwrap().change(task, &cancel).await, "requires the role operator");
    let queue = QueueName::new("q").unwrap();
    is_refused(worker.tasks().unwrap().pause(&queue, None).await, "requires the role operator");

    assert_eq!(operator.locks().apply(&lock, &request).await.unwrap(), Outcome::ReleaseRequested(1));
    assert_eq!(operator.tasks().unwrap().change(task, &cancel).await.unwrap(), None);
    let reason = Reason::new("stuck").unwrap();
    let force = LockOp::ForceRelease(ForceRelease { token: lease.token, by: holder(), reason });
    is_refused(operator.locks().apply(&lock, &force).await, "requires the role admin");
    let which = FinishedFilter { queue: None, state: None, before: Timestamp::from_micros(1), limit: 1 };
    is_refused(operator.tasks().unwrap().purge(&which).await, "requires the role admin");

    assert!(matches!(admin.locks().apply(&lock, &force).await.unwrap(), Outcome::Forced(_)));
    assert_eq!(admin.tasks().unwrap().purge(&which).await.unwrap(), 0);
    // Only an engine itself can report dead processes.
    let dead = LockOp::Sweep(Sweep { dead: vec![lease_id()] });
    is_refused(admin.locks().apply(&lock, &dead).await, "only the engine itself");
}

#[tokio::test]
async fn a_wrong_token_is_rejected_and_not_shown() {
    let lab = Lab::new().await;
    // A client sends the token of the user's own server, if there is one on this machine.
    let is_sent = leasehold::store::local_token_path().is_some_and(|path| path.exists());
    let without_token = if is_sent { "is not known" } else { "carries no token" };
    for (url, told) in [
        (format!("http://{}", lab.served.address), without_token),
        (format!("http://lh_0123456789ab_s3cr3t@{}", lab.served.address), "is not known"),
    ] {
        let Err(error) = Leasehold::connect(&url).await else { panic!("let in") };
        assert!(matches!(error, Error::Store { .. }));
        assert_eq!(error.code(), "STORE_NOT_PERMITTED");
        assert!(error.to_string().contains(told), "{error}");
        assert!(!format!("{error} {error:?} {:?}", error.hint()).contains("s3cr3t"), "{error:?}");
    }
}

#[tokio::test]
async fn errors_of_the_library_keep_their_text() {
    let lab = Lab::new().await;
    let worker = lab.as_a(Role::Admin).await;
    let update = TaskOp::Expire;
    let error = worker.tasks().unwrap().change(TaskId::from_uuid(Uuid::now_v7()), &update).await.unwrap_err();
    assert_eq!((error.code(), error.to_string().contains("cancel, retry or update")), ("INVALID", true));
    assert!(Token::new(u64::MAX).is_err());
}
