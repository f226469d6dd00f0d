//! Exit codes, streams and signals between caller and command.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use nix::sys::signal::Signal;

use super::support::{RunSandbox, Running, text};

#[test]
fn the_exit_code_is_the_commands_own() {
    let sandbox = RunSandbox::new();
    for code in [0, 1, 7, 75, 79, 127, 255] {
        let out = sandbox.output("a", &["sh", "-c", &format!("exit {code}")]);
        assert_eq!(out.status.code(), Some(code), "{}", text(&out.stderr));
        assert_eq!(text(&out.stderr), "");
    }
}

#[test]
fn a_signal_that_ends_the_command_is_mirrored_as_shells_do() {
    let sandbox = RunSandbox::new();
    for (name, number) in [("TERM", 15), ("KILL", 9), ("INT", 2), ("SEGV", 11)] {
        let out = sandbox.output("a", &["sh", "-c", &format!("kill -{name} $$")]);
        assert_eq!(out.status.code(), Some(128 + number));
    }
}

#[test]
fn stdin_stdout_and_stderr_pass_through() {
    let sandbox = RunSandbox::new();
    let mut run = sandbox.command("a", &["sh", "-c", "cat; echo to-stderr >&2"]);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(&mut run);
    let mut stdin = running.stdin().take().unwrap();
    stdin.write_all(b"hello\n").unwrap();
    drop(stdin);
    let out = running.output();
    assert_eq!((text(&out.stdout).as_str(), text(&out.stderr).as_str()), ("hello\n", "to-stderr\n"));
}

#[test]
fn arguments_are_passed_as_they_are_and_no_shell_sees_them() {
    let sandbox = RunSandbox::new();
    let words = ["$(touch x)", "a b", "", "*", "--", "-x", "ü\u{1f980}", "'\"\\"];
    let script = ["sh", "-c", r#"for word; do printf '<%s>' "$word"; done"#, "name"];
    let out = sandbox.output("a", &[&script[..], &words[..]].concat());
    assert_eq!(text(&out.stdout), format!("<{}>", words.join("><")));
}

#[test]
fn the_environment_names_the_locks_of_the_command() {
    let sandbox = RunSandbox::new();
    let script = r#"echo "$LEASEHOLD_LOCK|$LEASEHOLD_LOCKS|$LEASEHOLD_STORE|$LEASEHOLD_TOKEN|$LEASEHOLD_LEASE_ID|$LEASEHOLD_HOLDER|$OTHER""#;
    let mut run = sandbox.command("b --with a", &["sh", "-c", script]);
    run.env("OTHER", "kept").env("LEASEHOLD_TOKEN", "old").stdout(Stdio::piped());
    let running = Running::start(&mut run);
    let supervisor = running.supervisor;
    let out = text(&running.output().stdout);
    let found: Vec<&str> = out.trim_end().split('|').collect();
    assert_eq!(found[..3], ["b", "b\na", sandbox.store().as_str()]);
    assert!(found[3].parse::<u64>().unwrap() > 1_000_000, "{}", found[3]);
    assert_eq!(found[4].len(), 36);
    assert!(found[5].ends_with(&format!(":{supervisor}")), "{}", found[5]);
    assert_eq!(found[6], "kept");
}

#[test]
fn a_command_that_cannot_run_is_reported_before_anything_is_locked() {
    let sandbox = RunSandbox::new();
    let plain = sandbox.path("plain");
    std::fs::write(&plain, "echo hi\n").unwrap();
    for (command, code, said) in [
        ("no-such-command-anywhere", 127, "command 'no-such-command-anywhere' not found"),
        ("/no/such/file", 127, "not found"),
        ("/", 126, "is a directory"),
        (plain.to_str().unwrap(), 126, "permission denied"),
    ] {
        let out = sandbox.output("a", &[command]);
        assert_eq!(out.status.code(), Some(code), "{command}");
        assert!(
            text(&out.stderr).starts_with("leasehold: ") && text(&out.stderr).contains(said),
            "{command}"
        );
    }
    assert!(!sandbox.path("store.db").exists());
}

#[test]
fn a_program_that_the_system_refuses_gives_126_and_frees_the_lock() {
    let sandbox = RunSandbox::new();
    let broken = sandbox.path("broken");
    std::fs::write(&broken, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&broken, std::fs::Permissions::from_mode(0o755)).unwrap();
    let out = sandbox.output("a", &[broken.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(126));
    assert!(text(&out.stderr).contains("cannot be run: its interpreter is missing"), "{}", text(&out.stderr));
    assert!(sandbox.is_free("a"));
}

#[test]
fn a_script_without_a_shebang_runs_in_a_shell() {
    let sandbox = RunSandbox::new();
    let script = sandbox.path("script");
    std::fs::write(&script, "echo \"$1\"\nexit 5\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let out = sandbox.output("a", &[script.to_str().unwrap(), "hello"]);
    assert_eq!((out.status.code(), text(&out.stdout).as_str()), (Some(5), "hello\n"));
}

#[test]
fn signals_reach_the_command_and_its_answer_comes_back() {
    let sandbox = RunSandbox::new();
    for (signal, name) in [
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGINT, "INT"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
        (Signal::SIGWINCH, "WINCH"),
    ] {
        let file = format!("ready-{name}");
        let script =
            format!(r#"trap 'exit 42' {name}; echo 1 > "$SANDBOX/{file}"; while :; do sleep 0.05; done"#);
        let running = sandbox.start("a", &script);
        sandbox.wait_for_file(&file);
        running.signal(signal);
        let out = running.output();
        assert_eq!(out.status.code(), Some(42), "{name}: {}", text(&out.stderr));
    }
    assert!(sandbox.is_free("a"));
}

/// The system's list of signals has names for the first 31 only.
#[test]
fn the_death_by_a_real_time_signal_is_reported() {
    let sandbox = RunSandbox::new();
    let out = sandbox.output("a", &["sh", "-c", "kill -34 $$; sleep 1000"]);
    assert_eq!(out.status.code(), Some(128 + 34), "{}", text(&out.stderr));
    assert!(sandbox.is_free("a"));
}

#[test]
fn a_signal_reaches_the_whole_group_of_the_command() {
    let sandbox = RunSandbox::new();
    let script = r#"
        trap 'wait; exit 3' TERM
        sh -c 'trap "echo inner > $SANDBOX/inner; exit" TERM; echo 1 > "$SANDBOX/ready"; while :; do sleep 0.05; done' &
        wait; exit 4"#;
    let running = sandbox.start("a", script);
    sandbox.wait_for_file("ready");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.output().status.code(), Some(3));
    assert_eq!(sandbox.wait_for_file("inner"), "inner\n");
}

#[test]
fn ignored_signals_stay_ignored_under_nohup() {
    let sandbox = RunSandbox::new();
    let mut run =
        sandbox.command("a", &["sh", "-c", r#"echo 1 > "$SANDBOX/ready"; sleep 0.5; kill -HUP $$; exit 6"#]);
    let mut nohup = std::process::Command::new("sh");
    let words: Vec<_> =
        std::iter::once(run.get_program()).chain(run.get_args()).map(ToOwned::to_owned).collect();
    nohup.args(["-c", r#"trap "" HUP; exec "$@""#, "sh"]).args(words);
    sandbox.configure(&mut nohup);
    run = nohup;
    let running = Running::start(&mut run);
    sandbox.wait_for_file("ready");
    running.signal(Signal::SIGHUP);
    assert_eq!(running.output().status.code(), Some(6));
}
