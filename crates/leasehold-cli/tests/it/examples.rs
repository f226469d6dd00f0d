//! The scripts in `examples/`, run as they are.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use super::support::{Bench, Ran, run};

/// A script of the examples, with our binary and the bench's own folder on its path.
pub(crate) fn example(bench: &Bench, script: &str) -> Command {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(script);
    let ours = PathBuf::from(env!("CARGO_BIN_EXE_leasehold"));
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let folders = [bench.path().to_owned(), ours.parent().unwrap().to_owned()];
    let path = std::env::join_paths(folders.into_iter().chain(std::env::split_paths(&inherited))).unwrap();
    let mut command = Command::new(file);
    for (name, value) in bench.command([""; 0]).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("PATH", path).current_dir(bench.path());
    command
}

fn program(bench: &Bench, name: &str, script: &str) {
    let file = bench.path().join(name);
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A second host whose clock is a little behind comes when the job is long done: it must not run again, nor complain.
#[test]
fn the_cron_job_runs_once_however_many_hosts_start_it() {
    let bench = Bench::new();
    program(&bench, "make-report", "echo made >> reports");
    let jobs: Vec<_> = (0..5)
        .map(|_| example(&bench, "cron/nightly.sh").env("JOB", "make-report").spawn().unwrap())
        .collect();
    for job in jobs {
        assert_eq!(Ran::from(job.wait_with_output().unwrap()).code, 0);
    }
    let late = run(example(&bench, "cron/nightly.sh").env("JOB", "make-report"));
    assert_eq!((late.code, late.stderr.as_str()), (0, ""), "cron would write a mail");
    assert_eq!(fs::read_to_string(bench.path().join("reports")).unwrap(), "made\n");
}

/// The real terraform cannot be had everywhere; what counts here is what it is called with, and under which locks.
#[test]
fn terraform_is_called_under_both_locks() {
    let bench = Bench::new();
    program(&bench, "terraform", "echo \"$@\"; echo \"$LEASEHOLD_LOCKS\"; exit 2");
    let ran = run(example(&bench, "terraform/apply.sh").args(["prod", "-target=a b"]));
    assert_eq!(ran.code, 2, "{ran:?}");
    assert_eq!(ran.stdout, "apply -input=false -auto-approve -target=a b\nterraform/prod\ndeploy/prod\n");
    let usage = run(&mut example(&bench, "terraform/apply.sh"));
    assert!(usage.stderr.contains("usage: apply.sh WORKSPACE"), "{usage:?}");
}

/// Fifty webhooks at once, each event five times: who comes first starts, and nothing starts twice.
#[test]
fn the_workflow_server_starts_each_event_once() {
    let bench = Bench::new();
    let ran = run(&mut example(&bench, "workflow-server/run.sh"));
    assert_eq!(ran.code, 0, "{ran:?}");
    for word in ["200 started", "200 duplicate", "202 queued", "409 WORKFLOW_LOCKED"] {
        assert!(ran.stdout.contains(word), "{word}: {}", ran.stdout);
    }
    assert!(ran.stdout.ends_with("10 events, 10 executions: 10 succeeded\n"), "{}", ran.stdout);
}
