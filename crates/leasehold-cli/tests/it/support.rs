//! Sandbox for the binary: a store for each test, and output without values that change from run to
//! run.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// Folder with its own store, isolated from the settings of the user.
pub(crate) struct Sandbox {
    temp: TempDir,
}

/// Output and exit code of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        Self { temp }
    }

    pub(crate) fn path(&self) -> &Path {
        self.temp.path()
    }

    /// Returns the binary with these arguments, not started yet.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        with_usual_signals();
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.args(arguments).current_dir(self.path()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LEASEHOLD_") {
                command.env_remove(name);
            }
        }
        for name in ["COLUMNS", "NO_COLOR", "CLICOLOR_FORCE"] {
            command.env_remove(name);
        }
        command.env("TERM", "xterm").env("HOME", self.path());
        command.env("XDG_CONFIG_HOME", self.path().join("config"));
        command.env("XDG_STATE_HOME", self.path().join("state"));
        command.env("LEASEHOLD_STORE", format!("sqlite:{}", self.path().join("store.db").display()));
        command
    }

    /// Returns the binary with these arguments, started by another program: `outer` is that program
    /// and its arguments.
    pub(crate) fn command_in(&self, outer: &[&str], words: &str) -> Command {
        let plain = self.command(words.split_whitespace());
        let mut command = Command::new(outer[0]);
        command.args(&outer[1..]).arg(plain.get_program()).args(plain.get_args());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.current_dir(self.path()).stdin(Stdio::null());
        command
    }

    /// Runs the binary with arguments that need no quoting.
    pub(crate) fn run(&self, words: &str) -> Ran {
        self.run_words(&words.split_whitespace().collect::<Vec<_>>())
    }

    pub(crate) fn run_words(&self, words: &[&str]) -> Ran {
        run(&mut self.command(words))
    }

    /// Runs a command that must succeed, and returns its stdout.
    pub(crate) fn ok(&self, words: &str) -> String {
        let ran = self.run(words);
        assert_eq!(ran.code, 0, "{words}: {ran:?}");
        ran.stdout
    }

    /// Runs a command that must succeed, and parses its JSON.
    pub(crate) fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.ok(&format!("--json {words}"))).unwrap()
    }

    pub(crate) fn start(&self, words: &str) -> Child {
        let mut command = self.command(words.split_whitespace());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Acquires a lock and leaves it held. Returns the arguments that renew and release it.
    pub(crate) fn hold(&self, words: &str) -> Held {
        let value = self.json(&format!("locks acquire {words}"));
        let [id, token] = ["leaseId", "token"].map(|key| value[key].to_string().replace('"', ""));
        Held { with: format!("--lease-id {id} --token {token}"), token }
    }

    /// Waits until the status of a lock meets the condition.
    pub(crate) fn until(&self, lock: &str, so: impl Fn(&Value) -> bool) -> Value {
        let mut seen = Value::Null;
        eventually(&format!("lock {lock}"), || {
            seen = self.json(&format!("locks status {lock}"));
            so(&seen)
        });
        seen
    }

    /// Returns the text without values that change from run to run, and without the store in
    /// commands of hints: `hints.rs` tests that.
    pub(crate) fn tidy(&self, text: &str) -> String {
        tidy(&text.replace(&*self.path().to_string_lossy(), "[TEMP]"))
    }
}

/// Restores the default action of signals in the processes that tests start, also if the tests were
/// started with some of them ignored: by `nohup`, or in the background of a script. A signal with a
/// handler in this process has its default action in a program that it executes.
pub(crate) fn with_usual_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGTSTP] {
            if ignored & (1 << (signal as i32 - 1)) != 0 {
                // The signal stays without effect in this process.
                signal_hook::flag::register(signal as i32, Arc::default()).unwrap();
            }
        }
    });
}

/// Whether a process has a handler for SIGTERM.
pub(crate) fn catches_sigterm(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    caught & (1 << (Signal::SIGTERM as i32 - 1)) != 0
}

/// Lease that was left held.
pub(crate) struct Held {
    /// `--lease-id … --token …`.
    pub(crate) with: String,
    pub(crate) token: String,
}

pub(crate) fn run(command: &mut Command) -> Ran {
    command.output().map(Ran::from).unwrap()
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

/// Waits for a condition, and panics if it is not met in time.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !so() {
        assert!(Instant::now() < deadline, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Removes the store of a sandbox from commands in hints.
pub(crate) fn without_store(text: &str) -> String {
    let mut kept = String::new();
    let mut parts = text.split("leasehold --store sqlite:");
    kept += parts.next().unwrap_or_default();
    for part in parts {
        match part.split_once(' ') {
            Some((path, rest)) if path.ends_with("/store.db") => kept.extend(["leasehold ", rest]),
            _ => kept.extend(["leasehold --store sqlite:", part]),
        }
    }
    kept
}

/// Replaces times, ids, tokens and durations by placeholders, and separates columns by two blanks.
fn tidy(text: &str) -> String {
    let text = &without_store(text);
    let mut tidied = String::new();
    let mut word = String::new();
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_alphanumeric() || "-:.".contains(c) {
            word.push(c);
            continue;
        }
        let bare = word.trim_end_matches(['.', ':']);
        tidied += kind_of(bare).unwrap_or(bare);
        tidied += &word[bare.len()..];
        word.clear();
        if !(c == ' ' && tidied.ends_with("  ")) {
            tidied.push(c);
        }
    }
    tidied.truncate(tidied.len() - 1);
    tidied
}

fn kind_of(word: &str) -> Option<&'static str> {
    let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let parts: Vec<_> = word.split('-').map(str::len).collect();
    let units = ["ms", "s", "m", "h", "d"];
    let is_duration = word.split_inclusive(|c: char| c.is_ascii_alphabetic()).all(|part| {
        let number = part.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        units.contains(&&part[number.len()..]) && digits(&number.replace('.', ""))
    }) || word.strip_suffix("ms").is_some_and(digits);
    match word {
        _ if parts == [8, 4, 4, 4, 12] => Some("[ID]"),
        _ if word.len() >= 20 && word.ends_with('Z') && word.contains('T') => Some("[TIME]"),
        _ if word.len() == 16 && digits(word) => Some("[TOKEN]"),
        "" | "10m" => None, // A suggestion, always the same.
        _ if is_duration => Some("[AGE]"),
        _ => None,
    }
}

/// Returns JSON with changing values replaced by placeholders.
pub(crate) fn shape(mut value: Value) -> String {
    replace(&mut value);
    serde_json::to_string_pretty(&value).unwrap()
}

fn replace(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(replace),
        Value::Object(entries) => {
            for (key, value) in entries {
                match (key.as_str(), &*value) {
                    ("token" | "newest", Value::Number(token)) if token.as_u64() > Some(0) => {
                        *value = "[TOKEN]".into();
                    }
                    ("user" | "host" | "by", Value::String(_)) => *value = "[WHO]".into(),
                    ("command", Value::String(text)) if text.starts_with('/') => *value = "[COMMAND]".into(),
                    ("afterSeconds" | "expiresInSeconds", Value::Number(_)) => *value = "[SECONDS]".into(),
                    ("leaseRef", Value::String(_)) => *value = "[REF]".into(),
                    _ => replace(value),
                }
            }
        }
        Value::String(text) => *text = tidy(text),
        _ => {}
    }
}

/// Reports a case that this machine cannot run, to the runner of the tests too: `cargo xtask test` lists
/// them at its end.
pub(crate) fn not_applicable(case: &str, missing: &str) {
    eprintln!("{case} does not apply: this machine has not {missing}");
    if let Some(path) = std::env::var_os("LEASEHOLD_TEST_NOT_APPLICABLE") {
        let line = format!("this machine\t{case}\t{missing}\n");
        // One write, so that lines of concurrent tests do not mix.
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| std::io::Write::write_all(&mut file, line.as_bytes())).unwrap();
    }
}
