//! Runners of executions with the role worker: a caller that starts an execution to run it itself.

use std::time::Duration;

use leasehold::model::{ExecutionId, Holder, TaskState, Ttl, WorkflowName};
use leasehold::{Execution, Leasehold, StartResult};
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role, Server};

use crate::test_server::TestServer;

const TTL: Ttl = Ttl::from_secs(600);

/// Starts an execution that the caller runs itself.
async fn start(client: &Leasehold, key: &str) -> Execution {
    let start = client.workflow("deploy").key(key).runner_ttl(Duration::from_mins(1));
    let started = start.start("v1").await.unwrap();
    let StartResult::Started(execution) = started else { panic!("{started:?}") };
    execution
}

fn is_refused<T: std::fmt::Debug>(answer: leasehold::Result<T>) {
    let error = answer.unwrap_err();
    assert_eq!(error.code(), "STORE_NOT_PERMITTED", "{error}");
    assert!(error.to_string().contains("requires the role operator"), "{error}");
}

#[tokio::test]
async fn a_worker_renews_and_withdraws_only_what_its_token_has_started() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token_store = TokenStore::new(leasehold.clone());
    let builder = Server::builder(leasehold.clone()).access(Access::Tokens(Vec::new()));
    let server = TestServer::serve(builder.without_maintenance().build(), leasehold.clone()).await;
    let client = async |name: &str| {
        let token = token_store.create(name, Role::Worker, None).await.unwrap().text;
        Leasehold::connect(&server.base.replace("http://", &format!("http://{token}@"))).await.unwrap()
    };
    let (ada, eve) = (client("ada").await, client("eve").await);
    let [adas, eves] = [&ada, &eve].map(|client| client.workflows().unwrap());
    let deadline = async |id: ExecutionId| {
        let store = leasehold.store();
        store.tasks().unwrap().get(id.task()).await.unwrap().unwrap().runner_deadline.unwrap()
    };
    let by = || Holder::new("ada@laptop").unwrap();

    let execution = start(&ada, "one").await;
    let before = deadline(execution.id).await;
    is_refused(eves.renew_runner(execution.id, TTL).await);
    is_refused(eves.abort(execution.id, by(), None).await);
    assert_eq!(deadline(execution.id).await, before);
    adas.renew_runner(execution.id, TTL).await.unwrap();
    assert!(deadline(execution.id).await > before);
    assert_eq!(adas.abort(execution.id, by(), None).await.unwrap().state, TaskState::Aborted);
    // It has ended: that is the answer, not that it is not permitted.
    assert_eq!(adas.abort(execution.id, by(), None).await.unwrap_err().code(), "EXECUTION_FINISHED");

    // A run is aborted by an operator.
    let execution = start(&ada, "two").await;
    let taken = adas.take(&[WorkflowName::new("deploy").unwrap()], TTL).await.unwrap().unwrap();
    assert_eq!(taken.id, execution.id);
    is_refused(adas.abort(execution.id, by(), None).await);
    assert_eq!(adas.get(execution.id).await.unwrap().cancel_requested_by, None);
}
