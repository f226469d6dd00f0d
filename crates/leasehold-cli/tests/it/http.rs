//! The binary with a leasehold server for a store.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use leasehold::Leasehold;
use leasehold_server::{Access, Limits, Role, Server, access::TokenDesk, listen};
use tokio::sync::oneshot;

use crate::support::{Bench, Ran, eventually, run};

/// A server over a file, in a thread of its own. It ends at once when it is dropped, in the middle of everything.
pub(crate) struct Served {
    address: SocketAddr,
    token: String,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Served {
    pub(crate) fn over(file: &Path) -> Self {
        Self::start(file, ([127, 0, 0, 1], 0).into(), None)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// At this address, with a token that the file knows already.
    fn start(file: &Path, address: SocketAddr, token: Option<String>) -> Self {
        let store = format!("sqlite:{}", file.display());
        let (end, ended) = oneshot::channel::<()>();
        let (started, starts) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let leasehold = Leasehold::connect(&store).await.unwrap();
                let token = match token {
                    Some(token) => token,
                    None => {
                        let desk = TokenDesk::new(leasehold.clone());
                        desk.create("ci", Role::Operator, None).await.unwrap().text
                    }
                };
                let access = Access::Tokens(Vec::new());
                let server = Server::builder(leasehold).access(access).limits(Limits::default()).build();
                let listener = tokio::net::TcpListener::bind(address).await.unwrap();
                let listening = listen(&server, listener).unwrap();
                started.send((listening.address(), token)).unwrap();
                let _ = ended.await;
            });
        });
        let (address, token) = starts.recv().unwrap();
        Self { address, token, end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.thread.take().unwrap().join();
    }
}

/// Runs words with the server for a store.
fn through(bench: &Bench, served: &Served, words: &[&str]) -> Ran {
    run(&mut command(bench, served, words))
}

fn command(bench: &Bench, served: &Served, words: &[&str]) -> std::process::Command {
    let file = bench.path().join("token");
    std::fs::write(&file, format!("{}\n", served.token)).unwrap();
    let mut command = bench.command(words);
    command.env("LEASEHOLD_STORE", format!("http://{}", served.address)).env("LEASEHOLD_TOKEN_FILE", file);
    command
}

#[test]
fn commands_work_through_a_server() {
    let bench = Bench::new();
    let served = Served::over(&bench.path().join("served.db"));
    let ok = |words: &[&str]| {
        let ran = through(&bench, &served, words);
        assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
        assert!(!format!("{ran:?}").contains(&served.token), "{words:?}: {ran:?}");
        ran.stdout
    };
    assert_eq!(ok(&["run", "a", "--", "sh", "-c", "echo $LEASEHOLD_LOCK"]), "a\n");
    ok(&["locks", "acquire", "b", "--ttl", "30s"]);
    assert!(ok(&["locks", "list"]).contains('b'));
    let busy = through(&bench, &served, &["run", "b", "--", "true"]);
    assert_eq!(busy.code, 75, "{busy:?}");
    let forced = through(&bench, &served, &["locks", "release", "b", "--force", "--yes", "--reason", "x"]);
    assert_eq!(forced.code, 77, "an operator takes nothing away: {forced:?}");
    assert!(ok(&["history", "a"]).contains("released"));
    ok(&["tasks", "add", "q", "--payload", "{\"n\":1}"]);
    assert!(ok(&["tasks", "list"]).contains("pending"));
    let told = ok(&["doctor"]);
    assert!(told.contains("protocol 1") && told.contains("sqlite, with tasks"), "{told}");
}

#[test]
fn a_worker_works_through_a_server() {
    let bench = Bench::new();
    let served = Served::over(&bench.path().join("served.db"));
    let added = through(&bench, &served, &["tasks", "add", "q", "--payload", "\"hello\""]);
    assert_eq!(added.code, 0, "{added:?}");
    let worked =
        through(&bench, &served, &["tasks", "work", "q", "--until-empty", "--", "sh", "-c", "cat > out"]);
    assert_eq!(worked.code, 0, "{worked:?}");
    let done = through(&bench, &served, &["tasks", "list", "--state", "succeeded"]);
    assert!(done.stdout.contains("succeeded"), "{done:?}");
    assert_eq!(std::fs::read_to_string(bench.path().join("out")).unwrap().trim(), "\"hello\"");
}

/// Once when it goes and once when it is back, however often it was tried in between.
#[test]
fn a_worker_says_that_its_store_is_away_and_that_it_is_back() {
    let bench = Bench::new();
    let file = bench.path().join("served.db");
    let served = Served::over(&file);
    let mut command = command(&bench, &served, &["tasks", "work", "q", "--ttl", "3s", "--", "true"]);
    let said = bench.path().join("said");
    let stderr = std::fs::File::create(&said).unwrap();
    let mut worker = command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
    let told = |what: &str| std::fs::read_to_string(&said).unwrap().matches(what).count();
    eventually("it works", || through(&bench, &served, &["workers"]).stdout.contains('q'));
    let (address, token) = (served.address, served.token.clone());
    drop(served);
    eventually("it says that", || told("the store does not answer; trying again until it does") > 0);
    // Long enough for many more tries.
    std::thread::sleep(Duration::from_secs(3));
    let _served = Served::start(&file, address, Some(token));
    eventually("it says that", || told("the store answers again, after") > 0);
    worker.kill().unwrap();
    worker.wait().unwrap();
    let all = std::fs::read_to_string(&said).unwrap();
    assert_eq!((told("does not answer"), told("answers again")), (1, 1), "{all}");
    assert!(all.lines().count() < 10, "{all}");
}

#[test]
fn a_command_is_dead_when_its_server_is_gone() {
    let bench = Bench::new();
    let served = Served::over(&bench.path().join("served.db"));
    let words =
        ["run", "a", "--ttl", "4s", "--kill-after", "500ms", "--", "sh", "-c", "touch began; exec sleep 60"];
    let mut command = command(&bench, &served, &words);
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("it has begun", || bench.path().join("began").exists());
    drop(served);
    let since = Instant::now();
    let ran = Ran::from(running.wait_with_output().unwrap());
    assert_eq!(ran.code, 79, "{ran:?}");
    assert!(since.elapsed() < Duration::from_secs(6), "{:?}", since.elapsed());
}

/// A connection that is refused is tried again as long as the caller waits for the lock.
#[test]
fn who_waits_for_a_lock_waits_for_its_server() {
    let bench = Bench::new();
    let file = bench.path().join("served.db");
    let served = Served::over(&file);
    let (address, token) = (served.address, served.token.clone());
    let commands: [&[&str]; 3] = [
        &["run", "a", "--wait", "60s", "--", "echo", "ran"],
        &["locks", "acquire", "b", "--wait", "60s"],
        &["locks", "wait", "c", "--for", "free", "--timeout", "60s"],
    ];
    let mut waiting = commands.map(|words| command(&bench, &served, words));
    let mut at_once = command(&bench, &served, &["run", "a", "--", "true"]);
    let mut in_vain = command(&bench, &served, &["run", "a", "--wait", "300ms", "--", "true"]);
    drop(served);
    assert_eq!(run(&mut at_once).code, 69);
    let ran = run(&mut in_vain);
    assert_eq!(ran.code, 69, "{ran:?}");
    let mut waiting: Vec<_> = waiting
        .iter_mut()
        .map(|command| command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    for child in &mut waiting {
        let mut line = String::new();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        said.read_line(&mut line).unwrap();
        assert!(line.ends_with("; trying again\n"), "{line}");
        child.stderr = Some(said.into_inner());
    }
    let _served = Served::start(&file, address, Some(token));
    for child in waiting {
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{ran:?}");
    }
}

#[test]
fn a_server_that_lets_nobody_in_is_told() {
    let bench = Bench::new();
    let served = Served::over(&bench.path().join("served.db"));
    let mut stranger = bench.command(["locks", "list"]);
    stranger.env("LEASEHOLD_STORE", format!("http://lh_0123456789ab_s3cr3t@{}", served.address));
    let ran = run(&mut stranger);
    assert_eq!(ran.code, 77, "{ran:?}");
    assert!(!format!("{ran:?}").contains("s3cr3t"), "{ran:?}");
}
