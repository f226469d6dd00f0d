//! Contract test: schemathesis sends valid and invalid requests and compares the responses with the
//! `OpenAPI` document. The same requests are sent in each run; `LEASEHOLD_TEST_EFFORT=20` sends 20 times as
//! many.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use leasehold::Leasehold;
use leasehold_server::access::TokenStore;
use leasehold_server::config::Settings;
use leasehold_server::{Access, Role, Server};

use crate::openapi::python;
use crate::test_server::TestServer;

const SETTINGS: &str = r#"
[workflows.deploy]
runner = "external"

[workflows.report]
runner = "external"
on_locked = "queue"

[triggers.plain]
workflow = "report"
scheme = "none"
"#;

/// What schemathesis does with one server.
struct Requests<'a> {
    /// Token of the requests; without one the server is open.
    token: Option<&'a str>,
    phases: &'a str,
    /// Requests per operation, and sequences of requests.
    examples: u32,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_to_an_admin_match_the_document() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token = token(&leasehold, Role::Admin).await;
    let server = start(leasehold, Access::Tokens(Vec::new())).await;
    let phases = "examples,coverage,fuzzing,stateful";
    check(&server, Requests { token: Some(&token), phases, examples: 8 }).await;
    server.stop().await;
}

/// A token whose role does not suffice gets 403 from most operations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_to_every_other_role_match_the_document() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = start(leasehold.clone(), Access::Tokens(Vec::new())).await;
    for role in [Role::Reader, Role::Worker, Role::Operator] {
        let token = token(&leasehold, role).await;
        check(&server, Requests { token: Some(&token), phases: "fuzzing", examples: 2 }).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_of_an_open_server_on_a_file_match_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let server = start(Leasehold::connect(&url).await.unwrap(), Access::Open).await;
    check(&server, Requests { token: None, phases: "fuzzing,stateful", examples: 4 }).await;
    server.stop().await;
}

async fn token(leasehold: &Leasehold, role: Role) -> String {
    TokenStore::new(leasehold.clone()).create("contract", role, None).await.unwrap().text
}

async fn start(leasehold: Leasehold, access: Access) -> TestServer {
    let settings = Settings::parse(Path::new("leasehold.toml"), SETTINGS).unwrap();
    // Requests wait as long as the document allows, so the limit is short here.
    let mut limits = settings.limits;
    limits.wait = Duration::from_millis(50);
    let server = Server::builder(leasehold.clone())
        .access(access)
        .limits(limits)
        .workflows(settings.workflows)
        .triggers(settings.triggers)
        .build();
    TestServer::serve(server, leasehold).await
}

async fn check(server: &TestServer, requests: Requests<'_>) {
    let effort = std::env::var("LEASEHOLD_TEST_EFFORT").ok().and_then(|effort| effort.parse().ok());
    let effort: u32 = effort.unwrap_or(1).max(1);
    let folder = tempfile::tempdir().unwrap();
    let contract = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contract");
    let mut run = tokio::process::Command::new(python().with_file_name("schemathesis"));
    run.arg("--config-file").arg(contract.join("schemathesis.toml"));
    run.args(["--no-color", "run", &format!("{}/openapi.json", server.base)]);
    run.args(["--phases", requests.phases, "--max-examples", &(requests.examples * effort).to_string()]);
    if let Some(token) = requests.token {
        run.args(["--header", &format!("Authorization: Bearer {token}")]);
    }
    run.env("PYTHONPATH", &contract).env("PYTHONDONTWRITEBYTECODE", "1");
    run.env_remove("NO_PROXY").env("no_proxy", "*");
    run.current_dir(folder.path()).stdin(Stdio::null()).kill_on_drop(true);
    let limit = Duration::from_mins(15) * effort;
    let output = tokio::time::timeout(limit, run.output()).await.expect("it ends").unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    // A run without requests would succeed, too.
    assert!(said.contains("No issues found"), "{said}");
}
