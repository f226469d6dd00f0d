//! Contract test: schemathesis sends valid and invalid requests and compares the responses with the
//! `OpenAPI` document.

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_match_the_openapi_document() {
    let python = python();
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token = TokenStore::new(leasehold.clone()).create("contract", Role::Admin, None).await.unwrap();
    let settings = Settings::parse(Path::new("leasehold.toml"), SETTINGS).unwrap();
    // Requests wait as long as the document allows, so the limit is short here.
    let mut limits = settings.limits;
    limits.wait = Duration::from_millis(50);
    let server = Server::builder(leasehold.clone())
        .access(Access::Tokens(Vec::new()))
        .limits(limits)
        .workflows(settings.workflows)
        .triggers(settings.triggers)
        .build();
    let server = TestServer::serve(server, leasehold).await;

    let folder = tempfile::tempdir().unwrap();
    let contract = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contract");
    let mut run = tokio::process::Command::new(python.with_file_name("schemathesis"));
    run.arg("--config-file").arg(contract.join("schemathesis.toml"));
    run.args(["--no-color", "run", &format!("{}/openapi.json", server.base)]);
    run.env("LEASEHOLD_CONTRACT_TOKEN", &token.text).env("PYTHONPATH", &contract);
    run.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("NO_PROXY").env("no_proxy", "*");
    run.current_dir(folder.path()).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_mins(5), run.output()).await.expect("it ends").unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    server.stop().await;
}
