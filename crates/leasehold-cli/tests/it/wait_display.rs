//! What a waiter sees: one live line on a terminal, a few lines in a log, and the end of the wait.

use super::run::Screen;
use super::support::{Ran, Sandbox};

fn on_terminal(sandbox: &Sandbox, words: &str) -> Screen {
    let plain = sandbox.command(words.split_whitespace());
    let script = "stty cols 200 rows 24; exec \"$@\"";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, "sh"]).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(sandbox.path());
    Screen::of(&command)
}

#[test]
fn a_live_line_names_position_holder_and_reason_and_follows_the_holder() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("a --holder ada --ttl 1h --reason backup");
    let first = sandbox.start("locks acquire a --holder bob --wait forever --ttl 1h --reason hotfix");
    sandbox.until("a", |status| status["waiters"][0]["holder"] == "bob");
    let mut screen = on_terminal(&sandbox, "run a --wait forever -- echo it runs");
    screen.shows("waiting ");
    screen.shows("for lock 'a' (2 of 2), held by ada for ");
    screen.shows("(backup)");
    sandbox.ok(&format!("locks release a {}", held.with));
    screen.shows("for lock 'a' (1 of 1), now held by bob for ");
    screen.shows("(hotfix)");
    let ran = Ran::from(first.wait_with_output().unwrap());
    assert!(ran.stderr.contains("leasehold: waiting for lock 'a', held by ada for "), "{}", ran.stderr);
    assert!(ran.stderr.contains("(backup); 1 of "), "{}", ran.stderr);
    assert!(ran.stderr.contains("leasehold: acquired lock 'a' after "), "{}", ran.stderr);
    sandbox.run_words(&["locks", "release", "a", "--force", "--reason", "test", "--yes"]);
    screen.shows("\r\u{1b}[Kleasehold: acquired lock 'a' after ");
    screen.shows("it runs\r\n");
    assert_eq!(screen.ends_with_code(), 0);
}

#[test]
fn a_log_has_few_lines_and_stdout_none() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("a --holder ada --ttl 1h");
    let waiter = sandbox.start("run a --wait forever -- echo done");
    sandbox.until("a", |status| status["waiters"][0]["holder"].is_string());
    std::thread::sleep(std::time::Duration::from_millis(2500));
    sandbox.ok(&format!("locks release a {}", held.with));
    let ran = Ran::from(waiter.wait_with_output().unwrap());
    assert_eq!(ran.stdout, "done\n");
    let lines: Vec<_> = ran.stderr.lines().collect();
    assert!(lines[0].starts_with("leasehold: waiting for lock 'a', held by ada for "), "{lines:?}");
    assert!(lines.len() < 5 && !ran.stderr.contains('\u{1b}'), "{lines:?}");
    assert!(lines.last().unwrap().starts_with("leasehold: acquired lock 'a' after "), "{lines:?}");
}

#[test]
fn quiet_silences_the_wait() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("a --holder ada --ttl 1h");
    let waiters =
        ["run -q a --wait forever -- true", "-q locks wait a --for free", "-q locks acquire a -w forever"]
            .map(|words| sandbox.start(words));
    std::thread::sleep(std::time::Duration::from_millis(1500));
    sandbox.ok(&format!("locks release a {}", held.with));
    for waiter in waiters {
        let ran = Ran::from(waiter.wait_with_output().unwrap());
        assert_eq!(ran.stderr, "");
    }
}

#[test]
fn waiting_for_a_state_is_visible_too() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("a --holder ada --ttl 1h");
    let mut screen = on_terminal(&sandbox, "locks wait a --for free");
    screen.shows("for lock 'a', held by ada for ");
    sandbox.ok(&format!("locks release a {}", held.with));
    screen.shows("'a' is free\r\n");
    assert_eq!(screen.ends_with_code(), 0);
}

#[test]
fn a_queued_execution_names_the_running_one() {
    let sandbox = Sandbox::new();
    let mut first = sandbox.start("workflows run deploy -- sleep 1000");
    super::support::eventually("the first execution", || {
        sandbox.json("executions list --state running").as_array().is_some_and(|all| all.len() == 1)
    });
    let id = sandbox.json("executions list")[0]["id"].as_str().unwrap().to_owned();
    let mut screen = on_terminal(&sandbox, "workflows run deploy --on-locked queue -- echo second");
    screen.shows("for workflow 'deploy' (1 of 1), held by ");
    screen.shows(&id);
    sandbox.ok(&format!("executions abort {id}"));
    screen.shows("second\r\n");
    assert_eq!(screen.ends_with_code(), 0);
    first.wait().unwrap();
}

#[test]
fn a_lost_lease_names_who_took_it_and_why() {
    let sandbox = Sandbox::new();
    let victim = sandbox.start("run a --ttl 3s -- sleep 1000");
    sandbox.until("a", |status| status["isLocked"] == true);
    sandbox.run_words(&["locks", "release", "a", "--force", "--reason", "the host is gone", "--yes"]);
    let ran = Ran::from(victim.wait_with_output().unwrap());
    assert_eq!(ran.code, 79, "{ran:?}");
    assert!(ran.stderr.contains("the lease on lock 'a' was released by force by "), "{}", ran.stderr);
    assert!(ran.stderr.contains(": the host is gone"), "{}", ran.stderr);
}

#[test]
fn a_worker_on_a_terminal_tells_what_it_does_and_why_it_is_idle() {
    let sandbox = Sandbox::new();
    let id = sandbox.ok("tasks add mail").trim().to_owned();
    sandbox.ok("tasks add mail --delay 1h");
    let mut screen = on_terminal(&sandbox, "tasks work mail --slots 2 -- echo sent");
    screen.shows(&format!("task {} of 'mail', attempt 1: started", &id[28..]));
    screen.shows(&format!("{} | sent\r\n", &id[28..]));
    screen.shows("attempt 1: succeeded after ");
    screen.shows("\r\u{1b}[Kleasehold: idle for ");
    screen.shows("; 1 scheduled");
    sandbox.ok("queues pause mail --reason maintenance");
    screen.shows("; queue 'mail' is paused by ");
    screen.types("\u{3}");
    assert_eq!(screen.ends_with_code(), 0);
}

#[test]
fn without_a_terminal_a_worker_writes_output_as_it_is() {
    let sandbox = Sandbox::new();
    sandbox.ok("tasks add mail");
    let ran = sandbox.run("tasks work mail --slots 2 --until-empty -- echo sent");
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("sent\n", ""));
}
