//! The contract: schemathesis sends a server what its description allows and what it does not, and looks at the answers.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use leasehold::Leasehold;
use leasehold_server::access::TokenDesk;
use leasehold_server::config::Settings;
use leasehold_server::{Access, Limits, Role, Server};

use crate::lab::Lab;
use crate::openapi::python;

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
async fn a_server_answers_as_it_is_described() {
    let Some(python) = python() else { return };
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token = TokenDesk::new(leasehold.clone()).create("contract", Role::Admin, None).await.unwrap();
    let settings = Settings::parse(Path::new("leasehold.toml"), SETTINGS).unwrap();
    // Waits are as long as the description allows: not long here.
    let limits = Limits { wait: Duration::from_millis(50), ..settings.limits };
    let server = Server::builder(leasehold.clone())
        .access(Access::Tokens(Vec::new()))
        .limits(limits)
        .workflows(settings.workflows)
        .triggers(settings.triggers)
        .build();
    let lab = Lab::serve(server, leasehold).await;

    let folder = tempfile::tempdir().unwrap();
    let contract = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contract");
    let mut run = tokio::process::Command::new(python.with_file_name("schemathesis"));
    run.arg("--config-file").arg(contract.join("schemathesis.toml"));
    run.args(["--no-color", "run", &format!("{}/openapi.json", lab.base)]);
    run.env("LEASEHOLD_CONTRACT_TOKEN", &token.text).env("PYTHONPATH", &contract);
    run.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("NO_PROXY").env("no_proxy", "*");
    run.current_dir(folder.path()).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_mins(5), run.output()).await.expect("it ends").unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    lab.stop().await;
}
