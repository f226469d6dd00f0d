//! The scripts in `examples/`, run unchanged.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use super::support::{Ran, Sandbox, run};

/// Returns a script of the examples, with our binary and the folder of the sandbox on its path.
pub(crate) fn example(sandbox: &Sandbox, script: &str) -> Command {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(script);
    let ours = PathBuf::from(env!("CARGO_BIN_EXE_leasehold"));
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let folders = [sandbox.path().to_owned(), ours.parent().unwrap().to_owned()];
    let path = std::env::join_paths(folders.into_iter().chain(std::env::split_paths(&inherited))).unwrap();
    let mut command = Command::new(file);
    for (name, value) in sandbox.command([""; 0]).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("PATH", path).current_dir(sandbox.path());
    command
}

fn program(sandbox: &Sandbox, name: &str, script: &str) {
    let file = sandbox.path().join(name);
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A second host whose clock is slightly behind starts the job after it has finished: it must
/// neither run nor print anything.
#[test]
fn the_cron_job_runs_once_however_many_hosts_start_it() {
    let sandbox = Sandbox::new();
    program(&sandbox, "make-report", "echo made >> reports");
    let jobs: Vec<_> = (0..5)
        .map(|_| example(&sandbox, "cron/nightly.sh").env("JOB", "make-report").spawn().unwrap())
        .collect();
    for job in jobs {
        assert_eq!(Ran::from(job.wait_with_output().unwrap()).code, 0);
    }
    let late = run(example(&sandbox, "cron/nightly.sh").env("JOB", "make-report"));
    assert_eq!((late.code, late.stderr.as_str()), (0, ""), "cron would write a mail");
    assert_eq!(fs::read_to_string(sandbox.path().join("reports")).unwrap(), "made\n");
}

/// Terraform is not available everywhere; the test checks its arguments and locks.
#[test]
fn terraform_is_called_under_both_locks() {
    let sandbox = Sandbox::new();
    program(&sandbox, "terraform", "echo \"$@\"; echo \"$LEASEHOLD_LOCKS\"; exit 2");
    let ran = run(example(&sandbox, "terraform/apply.sh").args(["prod", "-target=a b"]));
    assert_eq!(ran.code, 2, "{ran:?}");
    assert_eq!(ran.stdout, "apply -input=false -auto-approve -target=a b\nterraform/prod\ndeploy/prod\n");
    let usage = run(&mut example(&sandbox, "terraform/apply.sh"));
    assert!(usage.stderr.contains("usage: apply.sh WORKSPACE"), "{usage:?}");
}

/// Fifty concurrent webhooks, each event five times: the first one starts an execution, and no
/// event starts two.
#[test]
fn the_workflow_server_starts_each_event_once() {
    let sandbox = Sandbox::new();
    let ran = run(&mut example(&sandbox, "workflow-server/run.sh"));
    assert_eq!(ran.code, 0, "{ran:?}");
    for word in ["200 started", "200 duplicate", "202 queued", "409 WORKFLOW_LOCKED"] {
        assert!(ran.stdout.contains(word), "{word}: {}", ran.stdout);
    }
    assert!(ran.stdout.ends_with("10 events, 10 executions: 10 succeeded\n"), "{}", ran.stdout);
}
