//! Tasks on a terminal: progress bar, colours, prompts, and Ctrl-C.

use std::process::Command;

use super::support::{RunSandbox, text};
use super::terminal::Screen;

fn tasks(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.arg("tasks").args(words);
    command
}

fn quietly(sandbox: &RunSandbox, words: &[&str]) -> String {
    let mut command = tasks(words);
    sandbox.configure(&mut command);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{words:?}: {out:?}");
    text(&out.stdout)
}

#[test]
fn adding_many_tasks_shows_a_bar_and_clears_it() {
    let sandbox = RunSandbox::new();
    let lines = sandbox.path("lines");
    std::fs::write(&lines, "1\n".repeat(1200)).unwrap();
    let file = lines.to_str().unwrap();
    let mut screen = Screen::start(&sandbox, &tasks(&["add", "a", "--lines", file]));
    screen.shows("\r\u{1b}[Kadding 500");
    screen.shows("\r\u{1b}[Kadding 1200");
    screen.shows("\r\u{1b}[Kadded 1200 tasks to 'a'");
    assert_eq!(screen.ends_with_code(), 0);
}

#[test]
fn failed_tasks_are_red() {
    let sandbox = RunSandbox::new();
    quietly(&sandbox, &["add", "a", "--max-attempts", "1"]);
    quietly(&sandbox, &["work", "a", "--until-empty", "--", "false"]);
    let mut screen = Screen::start(&sandbox, &tasks(&["list"]));
    screen.shows("\u{1b}[1m\u{1b}[31m");
    screen.shows("failed");
    assert_eq!(screen.ends_with_code(), 0);
    assert!(!quietly(&sandbox, &["list"]).contains('\u{1b}'));
}

#[test]
fn a_purge_asks_first() {
    let sandbox = RunSandbox::new();
    quietly(&sandbox, &["add", "a"]);
    quietly(&sandbox, &["work", "a", "--until-empty", "--", "true"]);
    for (answer, code, shown) in [("n\n", 1, "nothing was changed"), ("y\n", 0, "deleted 1 task")] {
        let mut screen = Screen::start(&sandbox, &tasks(&["purge", "--queue", "a", "--older-than", "0s"]));
        screen.shows("Delete all finished tasks of queue 'a' that ended more than");
        screen.shows("? [y/N] ");
        screen.types(answer);
        screen.shows(shown);
        assert_eq!(screen.ends_with_code(), code);
    }
}

/// The terminal sends the signal to the whole job: the command is not part of it and may finish.
#[test]
fn control_c_lets_the_command_finish() {
    let sandbox = RunSandbox::new();
    let id = quietly(&sandbox, &["add", "a"]).trim().to_owned();
    let script =
        r#"echo 1 > "$SANDBOX/began"; while ! [ -e "$SANDBOX/go" ]; do sleep 0.01; done; echo finished"#;
    let mut screen = Screen::start(&sandbox, &tasks(&["work", "a", "--", "sh", "-c", script]));
    screen.shows("is waiting for tasks; press Ctrl-C to stop it");
    sandbox.wait_for_file("began");
    screen.types("\u{3}");
    screen.shows("press Ctrl-C again to end them now");
    std::fs::write(sandbox.path("go"), "").unwrap();
    screen.shows("finished");
    assert_eq!(screen.ends_with_code(), 0);
    assert!(quietly(&sandbox, &["show", &id]).contains("\"finished\""));
}

/// The command is not a job of the shell: no shell could resume it if it were stopped.
#[test]
fn a_command_that_asks_on_the_terminal_finds_none() {
    let sandbox = RunSandbox::new();
    quietly(&sandbox, &["add", "a"]);
    let script = "read line < /dev/tty || echo there is none";
    let mut screen =
        Screen::start(&sandbox, &tasks(&["work", "a", "--until-empty", "--", "sh", "-c", script]));
    screen.shows("there is none");
    assert_eq!(screen.ends_with_code(), 0);
}
