//! The binary on PostgreSQL, and a server whose PostgreSQL accepts requests and never responds.

#[cfg(feature = "torture")]
mod faults;
#[cfg(feature = "torture")]
mod private_server;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::support::engine_at;
use crate::deadlocks::deadlocks_are_found;
use crate::serve::support::{Served, request};
use crate::support::{Ran, Sandbox, eventually};
use crate::torture::{is_fit, race_is_fair};

/// Proxy in front of the engine; forwards data until it is frozen.
struct Freezer {
    address: SocketAddr,
    frozen: Arc<AtomicBool>,
}

impl Freezer {
    /// Starts a proxy; returns it with the URL of a store that uses it and has this schema.
    fn with_schema(schema: &str) -> (Self, String) {
        let url = engine_at("postgres");
        // postgres://USER[:PASSWORD]@HOST:PORT/DATABASE[?…]
        let (before, rest) = url.split_once('@').unwrap_or_else(|| panic!("no user in the URL"));
        let (host, rest) = rest.split_once('/').unwrap();
        let freezer = Self::before(host.to_owned());
        let mark = if rest.contains('?') { '&' } else { '?' };
        let schema = format!("{schema}_{}", std::process::id());
        let store = format!("{before}@{}/{rest}{mark}schema={schema}", freezer.address);
        (freezer, store)
    }

    fn before(engine: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, frozen) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let freezes = frozen.clone();
        std::thread::spawn(move || {
            for ours in listener.incoming().flatten() {
                let theirs = TcpStream::connect(&engine).unwrap();
                for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
                    let (from, to, frozen) =
                        (from.try_clone().unwrap(), to.try_clone().unwrap(), freezes.clone());
                    std::thread::spawn(move || pass_on(from, to, &frozen));
                }
            }
        });
        Self { address, frozen }
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, frozen: &AtomicBool) {
    let mut part = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut part) {
        while frozen.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
        if to.write_all(&part[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// A command whose first connection gets no response waits for its store for as long as for its lock.
#[test]
fn a_caller_that_waits_for_a_lock_waits_for_the_first_connection() {
    let (freezer, store) = Freezer::with_schema("first");
    let sandbox = Sandbox::new();
    freezer.frozen.store(true, Ordering::SeqCst);
    let mut at_once = sandbox.command(["run", "a", "--", "true"]);
    let ran = crate::support::run(at_once.env("LEASEHOLD_STORE", &store));
    assert_eq!(ran.code, 69, "{ran:?}");
    assert!(ran.stderr.contains("did not answer in time"), "{ran:?}");
    let mut waiting = sandbox.command(["run", "a", "--wait", "120s", "--", "echo", "ran"]);
    let waiting = waiting.env("LEASEHOLD_STORE", &store).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut waiting = waiting.spawn().unwrap();
    let (mut line, mut said) = (String::new(), BufReader::new(waiting.stderr.take().unwrap()));
    said.read_line(&mut line).unwrap();
    assert!(line.ends_with("did not answer in time; trying again\n"), "{line}");
    freezer.frozen.store(false, Ordering::SeqCst);
    let ran = Ran::from(waiting.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ran\n"), "{ran:?}");
}

#[test]
fn every_route_answers_503_within_six_seconds_while_the_engine_is_frozen() {
    let (freezer, store) = Freezer::with_schema("frozen");
    let (_, schema) = store.rsplit_once('=').unwrap();
    let sandbox = Sandbox::new();
    let token = {
        let mut command = sandbox.command(["--json", "token", "new", "--name", "ada", "--role", "admin"]);
        let made = crate::support::run(command.env("LEASEHOLD_STORE", &store));
        serde_json::from_str::<serde_json::Value>(&made.stdout).unwrap()["token"].as_str().unwrap().to_owned()
    };
    let mut command = sandbox.command(["--json", "serve", "--listen", "127.0.0.1:0"]);
    let served = Served::spawn(command.env("LEASEHOLD_STORE", &store).stdout(Stdio::piped()));
    eventually("ready", || served.get("/readyz").status == 200);
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let ask = |method: &str, path: &str, body: &serde_json::Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let begun = Instant::now();
        (request(served.address, method, path, &headers, &body), begun.elapsed())
    };
    let routes = [
        ("POST", "/api/v1/locks/a/acquire", json!({})),
        ("POST", "/api/v1/locks/a/acquire", json!({ "waitSeconds": 1 })),
        ("GET", "/api/v1/locks/a", json!(null)),
        ("GET", "/readyz", json!(null)),
    ];
    assert_eq!(ask("POST", routes[0].1, &json!({ "ttlSeconds": 1 })).0.status, 200);
    freezer.frozen.store(true, Ordering::SeqCst);
    for (method, path, body) in &routes {
        let (reply, took) = ask(method, path, body);
        assert_eq!(reply.status, 503, "{method} {path} {body}: {reply:?}");
        assert!(took < Duration::from_millis(6500), "{method} {path} {body}: {took:?}");
        let text = reply.body.to_string();
        assert!(!text.contains(schema), "{text}");
    }
    // Again while the token is still cached: then the request reaches the lock itself.
    freezer.frozen.store(false, Ordering::SeqCst);
    eventually("back", || ask("GET", "/api/v1/locks", &json!(null)).0.status == 200);
    freezer.frozen.store(true, Ordering::SeqCst);
    let (reply, took) = ask("POST", "/api/v1/locks/b/acquire", &json!({}));
    assert_eq!(reply.status, 503, "{reply:?}");
    assert!(took < Duration::from_millis(6500), "{took:?}");
    freezer.frozen.store(false, Ordering::SeqCst);
}

#[test]
fn it_is_fit_under_faults() {
    let schema = format!("torture_{}", std::process::id());
    is_fit(&Sandbox::new(), &format!("{}?schema={schema}", engine_at("postgres")), None);
}

#[test]
fn one_client_wins_a_race() {
    let schema = format!("race_{}", std::process::id());
    race_is_fair(&Sandbox::new(), &format!("{}?schema={schema}", engine_at("postgres")));
}

#[test]
fn deadlocks_are_found_on_postgres() {
    let url = engine_at("postgres");
    let mark = if url.contains('?') { '&' } else { '?' };
    let store = format!("{url}{mark}schema=deadlocks_{}", std::process::id());
    deadlocks_are_found(&|command| _ = command.env("LEASEHOLD_STORE", &store));
}
