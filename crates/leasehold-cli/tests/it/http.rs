//! The binary with a leasehold server as its store.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use leasehold::Leasehold;
use leasehold_server::{Access, Limits, Role, Server, access::TokenStore, listen};
use tokio::sync::oneshot;

use crate::support::{Ran, Sandbox, eventually, run};

/// Server over a file, on its own thread. Stops immediately on drop, also during requests.
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

    /// Starts a server at this address, with a token that the store already contains.
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
                        let desk = TokenStore::new(leasehold.clone());
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

/// Runs a command with the server as its store.
fn through(sandbox: &Sandbox, served: &Served, words: &[&str]) -> Ran {
    run(&mut command(sandbox, served, words))
}

fn command(sandbox: &Sandbox, served: &Served, words: &[&str]) -> std::process::Command {
    let file = sandbox.path().join("token");
    std::fs::write(&file, format!("{}\n", served.token)).unwrap();
    let mut command = sandbox.command(words);
    command.env("LEASEHOLD_STORE", format!("http://{}", served.address)).env("LEASEHOLD_TOKEN_FILE", file);
    command
}

#[test]
fn commands_work_through_a_server() {
    let sandbox = Sandbox::new();
    let served = Served::over(&sandbox.path().join("served.db"));
    let ok = |words: &[&str]| {
        let ran = through(&sandbox, &served, words);
        assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
        assert!(!format!("{ran:?}").contains(&served.token), "{words:?}: {ran:?}");
        ran.stdout
    };
    assert_eq!(ok(&["run", "a", "--", "sh", "-c", "echo $LEASEHOLD_LOCK"]), "a\n");
    ok(&["locks", "acquire", "b", "--ttl", "30s"]);
    assert!(ok(&["locks", "list"]).contains('b'));
    let busy = through(&sandbox, &served, &["run", "b", "--", "true"]);
    assert_eq!(busy.code, 75, "{busy:?}");
    let forced = through(&sandbox, &served, &["locks", "release", "b", "--force", "--yes", "--reason", "x"]);
    assert_eq!(forced.code, 77, "an operator takes nothing away: {forced:?}");
    assert!(ok(&["history", "a"]).contains("released"));
    ok(&["tasks", "add", "q", "--payload", "{\"n\":1}"]);
    assert!(ok(&["tasks", "list"]).contains("pending"));
    let told = ok(&["doctor"]);
    assert!(told.contains("protocol 1") && told.contains("sqlite, with tasks"), "{told}");
}

#[test]
fn a_worker_works_through_a_server() {
    let sandbox = Sandbox::new();
    let served = Served::over(&sandbox.path().join("served.db"));
    let added = through(&sandbox, &served, &["tasks", "add", "q", "--payload", "\"hello\""]);
    assert_eq!(added.code, 0, "{added:?}");
    let worked =
        through(&sandbox, &served, &["tasks", "work", "q", "--until-empty", "--", "sh", "-c", "cat > out"]);
    assert_eq!(worked.code, 0, "{worked:?}");
    let done = through(&sandbox, &served, &["tasks", "list", "--state", "succeeded"]);
    assert!(done.stdout.contains("succeeded"), "{done:?}");
    assert_eq!(std::fs::read_to_string(sandbox.path().join("out")).unwrap().trim(), "\"hello\"");
}

/// Reported once when the store is lost and once when it is back, whatever the number of retries.
#[test]
fn a_worker_reports_a_store_outage_and_its_end() {
    let sandbox = Sandbox::new();
    let file = sandbox.path().join("served.db");
    let served = Served::over(&file);
    let mut command = command(&sandbox, &served, &["tasks", "work", "q", "--ttl", "3s", "--", "true"]);
    let said = sandbox.path().join("said");
    let stderr = std::fs::File::create(&said).unwrap();
    let mut worker = command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
    let told = |what: &str| std::fs::read_to_string(&said).unwrap().matches(what).count();
    eventually("it works", || through(&sandbox, &served, &["workers"]).stdout.contains('q'));
    let (address, token) = (served.address, served.token.clone());
    drop(served);
    eventually("it says that", || told("the store does not answer; trying again until it does") > 0);
    // Long enough for many more retries.
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
fn a_command_dies_with_its_server() {
    let sandbox = Sandbox::new();
    let served = Served::over(&sandbox.path().join("served.db"));
    let words =
        ["run", "a", "--ttl", "4s", "--kill-after", "500ms", "--", "sh", "-c", "touch began; exec sleep 60"];
    let mut command = command(&sandbox, &served, &words);
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("it has begun", || sandbox.path().join("began").exists());
    drop(served);
    let since = Instant::now();
    let ran = Ran::from(running.wait_with_output().unwrap());
    assert_eq!(ran.code, 79, "{ran:?}");
    assert!(since.elapsed() < Duration::from_secs(6), "{:?}", since.elapsed());
}

/// What a relay does with a part of a request.
enum Relayed {
    At(Duration),
    /// The connection ends.
    Refused,
}

/// Returns an address that leads to the server. Each part of its answers arrives `delay` later.
fn relay(served: &Served, delay: Duration, treat: fn(&str) -> Relayed) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, target) = (listener.local_addr().unwrap(), served.address);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let upstream = TcpStream::connect(target).unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
            std::thread::spawn(move || {
                let mut part = vec![0; 16 << 10];
                while let Ok(read @ 1..) = from.read(&mut part) {
                    match treat(&String::from_utf8_lossy(&part[..read])) {
                        Relayed::At(delay) => std::thread::sleep(delay),
                        Relayed::Refused => break,
                    }
                    if to.write_all(&part[..read]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
            let (mut from, mut to) = (upstream, client);
            std::thread::spawn(move || {
                let mut part = vec![0; 16 << 10];
                while let Ok(read @ 1..) = from.read(&mut part) {
                    std::thread::sleep(delay);
                    if to.write_all(&part[..read]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

/// With these options no lease is long enough if a renewal takes more than 170 ms.
#[test]
fn a_store_that_is_too_slow_for_the_options_is_reported_and_the_lock_released() {
    let sandbox = Sandbox::new();
    let served = Served::over(&sandbox.path().join("served.db"));
    let address = relay(&served, Duration::from_millis(400), |_| Relayed::At(Duration::ZERO));
    let words = "run a --ttl 6s --renew-at 0.4 --kill-after 2900ms -- touch began";
    let mut command = command(&sandbox, &served, &words.split(' ').collect::<Vec<_>>());
    let ran = run(command.env("LEASEHOLD_STORE", format!("http://{address}")));
    assert_eq!(ran.code, 69, "{ran:?}");
    assert!(ran.stderr.contains("the store is too slow for --kill-after"), "{ran:?}");
    assert!(!sandbox.path().join("began").exists());
    let next = through(&sandbox, &served, &["run", "a", "--", "true"]);
    assert_eq!(next.code, 0, "{next:?}");
}

/// The release takes longer than the rest of the time that a command has to stop.
#[test]
fn after_the_maximum_runtime_the_lock_is_released_although_the_store_is_slow() {
    let sandbox = Sandbox::new();
    let served = Served::over(&sandbox.path().join("served.db"));
    let address = relay(&served, Duration::ZERO, |request| {
        let is_release = request.contains("\"op\":\"release\"");
        Relayed::At(if is_release { Duration::from_millis(2500) } else { Duration::ZERO })
    });
    let words = "run a --ttl 60s --max-runtime 100ms --kill-after 100ms -- sleep 1000";
    let mut command = command(&sandbox, &served, &words.split(' ').collect::<Vec<_>>());
    let ran = run(command.env("LEASEHOLD_STORE", format!("http://{address}")));
    assert_eq!(ran.code, 124, "{ran:?}");
    let next = through(&sandbox, &served, &["run", "a", "--", "true"]);
    assert_eq!(next.code, 0, "{next:?}");
}

/// What these commands read afterwards is only for their messages.
#[test]
fn a_renewal_and_a_release_succeed_although_the_lock_cannot_be_read_afterwards() {
    let sandbox = Sandbox::new();
    let served = Served::over(&sandbox.path().join("served.db"));
    let acquired = through(&sandbox, &served, &["--json", "locks", "acquire", "a", "--ttl", "5m"]);
    let lease: serde_json::Value = serde_json::from_str(&acquired.stdout).unwrap();
    let (id, token) = (lease["leaseId"].as_str().unwrap(), lease["token"].to_string());
    let address = relay(&served, Duration::ZERO, |request| {
        if request.contains("/locks/get ") { Relayed::Refused } else { Relayed::At(Duration::ZERO) }
    });
    let change = |verb: &str| {
        let words = ["locks", verb, "a", "--lease-id", id, "--token", &token];
        let mut command = command(&sandbox, &served, &words);
        run(command.env("LEASEHOLD_STORE", format!("http://{address}")))
    };
    let renewed = change("renew");
    assert!(renewed.code == 0 && renewed.stdout.starts_with("renewed 'a' until "), "{renewed:?}");
    let released = change("release");
    assert_eq!((released.code, released.stdout.as_str()), (0, "released 'a'\n"), "{released:?}");
}

/// A refused connection is retried as long as the caller waits for the lock.
#[test]
fn a_caller_that_waits_for_a_lock_waits_for_its_server() {
    let sandbox = Sandbox::new();
    let file = sandbox.path().join("served.db");
    let served = Served::over(&file);
    let (address, token) = (served.address, served.token.clone());
    let commands: [&[&str]; 3] = [
        &["run", "a", "--wait", "60s", "--", "echo", "ran"],
        &["locks", "acquire", "b", "--wait", "60s"],
        &["locks", "wait", "c", "--for", "free", "--timeout", "60s"],
    ];
    let mut waiting = commands.map(|words| command(&sandbox, &served, words));
    let mut at_once = command(&sandbox, &served, &["run", "a", "--", "true"]);
    let mut in_vain = command(&sandbox, &served, &["run", "a", "--wait", "300ms", "--", "true"]);
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
fn a_server_that_admits_no_request_says_so() {
    let sandbox = Sandbox::new();
    let served = Served::over(&sandbox.path().join("served.db"));
    let mut stranger = sandbox.command(["locks", "list"]);
    stranger.env("LEASEHOLD_STORE", format!("http://lh_0123456789ab_s3cr3t@{}", served.address));
    let ran = run(&mut stranger);
    assert_eq!(ran.code, 77, "{ran:?}");
    assert!(!format!("{ran:?}").contains("s3cr3t"), "{ran:?}");
}
