//! The dashboard in Chromium: live updates, dialogs, the policy, and the accessibility of every page.
//!
//! The steps in the browser are in `tests/browser/dashboard.mjs`. This file starts the servers, and it does on request
//! what other processes do meanwhile: the script asks for it with a line on its output.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use leasehold::model::Payload;
use leasehold::{Guard, Leasehold};
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Listening, Role, Server, listen};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::scene::Scene;
use crate::test_server::TestServer;

fn variable(name: &str) -> PathBuf {
    let value = std::env::var_os(name);
    value.unwrap_or_else(|| panic!("{name} is set by cargo xtask test and cargo xtask engines up")).into()
}

/// What the test holds while the script runs.
struct World {
    leasehold: Leasehold,
    server: Option<Listening>,
    access: Access,
    address: SocketAddr,
    guards: Vec<(String, Guard)>,
    waiters: Vec<tokio::task::JoinHandle<leasehold::Result<Guard>>>,
    /// Server that is the store of the other one, if the script stops the store.
    store: Option<TestServer>,
}

impl World {
    async fn new(leasehold: Leasehold, access: Access) -> Self {
        let server = start(&leasehold, access.clone(), ([127, 0, 0, 1], 0).into()).await;
        let address = server.address();
        let (guards, waiters) = (Vec::new(), Vec::new());
        Self { leasehold, server: Some(server), access, address, guards, waiters, store: None }
    }

    /// Does what the script asks for, and returns what it wants to know.
    async fn perform(&mut self, request: &Value) -> Value {
        let name = request["name"].as_str().unwrap_or("").to_owned();
        match request["do"].as_str().unwrap() {
            "acquire" => {
                let holder = request["holder"].as_str().unwrap_or("ci@runner-7");
                let lock = self.leasehold.lock(name.as_str()).holder(holder).ttl(Duration::from_secs(30));
                let guard = lock.acquire().await.unwrap();
                let token = guard.token().get();
                self.guards.push((name, guard));
                json!({ "token": token })
            }
            "wait" => {
                let holder = request["holder"].as_str().unwrap_or("web-2");
                let lock = self.leasehold.lock(name.as_str()).holder(holder).wait(Duration::from_mins(5));
                self.waiters.push(tokio::spawn(lock.acquire()));
                json!({})
            }
            "deadlock" => {
                self.deadlock(&request["locks"], &request["holders"]).await;
                json!({})
            }
            "release" => {
                let place = self.guards.iter().position(|(known, _)| *known == name).unwrap();
                self.guards.remove(place).1.release().await.unwrap();
                json!({})
            }
            "revoke" => {
                let tokens = TokenStore::new(self.leasehold.clone());
                for token in tokens.list().await.unwrap() {
                    tokens.revoke(&token.id).await.unwrap();
                }
                json!({})
            }
            "stop-store" => {
                self.store.take().unwrap().stop().await;
                json!({})
            }
            "stop" => {
                self.server.take().unwrap().stop().await;
                json!({})
            }
            "start" => {
                self.server = Some(start(&self.leasehold, self.access.clone(), self.address).await);
                json!({})
            }
            "status" => {
                let status = self.leasehold.locks().status(name.as_str()).await.unwrap();
                json!({ "isLocked": status.is_locked, "token": status.token.get() })
            }
            "enqueue" => {
                let payload = Payload::of(&request["payload"]).unwrap();
                let added = self.leasehold.enqueue_to(name.as_str(), payload).await.unwrap();
                json!({ "id": added.id.to_string() })
            }
            other => panic!("the script asks for {other}"),
        }
    }
}

impl World {
    /// Lets each holder take its lock and then wait for the lock of the next one.
    async fn deadlock(&mut self, locks: &Value, holders: &Value) {
        let texts = |list: &Value| -> Vec<String> { serde_json::from_value(list.clone()).unwrap() };
        let (locks, holders) = (texts(locks), texts(holders));
        let found = self.leasehold.locks().deadlocks().await.unwrap().found.len();
        let mut guards = Vec::new();
        for (lock, holder) in locks.iter().zip(&holders) {
            let lock = self.leasehold.lock(lock.as_str()).holder(holder.as_str());
            guards.push(lock.acquire().await.unwrap());
        }
        for (number, (guard, holder)) in guards.iter().zip(&holders).enumerate() {
            let next = locks[(number + 1) % locks.len()].as_str();
            let lock = self.leasehold.lock(next).holder(holder.as_str()).within(guard.lease_refs());
            self.waiters.push(tokio::spawn(lock.wait(Duration::from_mins(5)).acquire()));
        }
        while self.leasehold.locks().deadlocks().await.unwrap().found.len() == found {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.guards.extend(locks.into_iter().zip(guards));
    }
}

/// Starts a server on this address.
async fn start(leasehold: &Leasehold, access: Access, address: SocketAddr) -> Listening {
    let server = Server::builder(leasehold.clone()).access(access).build();
    let mut listener = tokio::net::TcpListener::bind(address).await;
    // The connections of the browser to an earlier server may still be closing.
    for _ in 0..100 {
        if listener.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        listener = tokio::net::TcpListener::bind(address).await;
    }
    listen(&server, listener.unwrap()).unwrap()
}

/// Runs a part of the script against a server over this store. The script fails with its reason.
async fn run(part: &str, leasehold: Leasehold, access: Access, token: Option<&str>) {
    play(part, World::new(leasehold, access).await, token).await;
}

async fn play(part: &str, mut world: World, token: Option<&str>) {
    let base = format!("http://{}", world.address);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/dashboard.mjs");
    let mut node = tokio::process::Command::new("node");
    node.arg(script).arg(part).arg(base);
    node.env("LEASEHOLD_TEST_BROWSER", variable("LEASEHOLD_TEST_BROWSER"));
    node.env("LEASEHOLD_TEST_CHROMIUM", variable("LEASEHOLD_TEST_CHROMIUM"));
    node.envs(token.map(|token| ("TOKEN", token)));
    node.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
    let mut node = node.spawn().expect("node is installed: apt-get install nodejs");
    let mut stdin = node.stdin.take().unwrap();
    let mut lines = BufReader::new(node.stdout.take().unwrap()).lines();
    let ended = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            let Some(request) = line.strip_prefix("ASK ") else {
                println!("{line}");
                continue;
            };
            let answer = world.perform(&serde_json::from_str(request).unwrap()).await;
            stdin.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
        }
        node.wait().await.unwrap()
    };
    // Pictures of all pages take a while, and a busy machine is slow.
    let limit = Duration::from_mins(if std::env::var_os("SCREENSHOTS").is_some() { 15 } else { 10 });
    let status = tokio::time::timeout(limit, ended).await.expect("the script ends");
    assert!(status.success(), "{part} failed");
    if let Some(server) = world.server {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_change_without_being_loaded_again() {
    run("live", Leasehold::connect("memory:").await.unwrap(), Access::Open, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_forced_in_a_dialog_that_survives_updates() {
    run("force", Leasehold::connect("memory:").await.unwrap(), Access::Open, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_viewer_signs_in_and_a_reader_sees_no_actions() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token = TokenStore::new(leasehold.clone()).create("ada", Role::Reader, None).await.unwrap();
    run("sign-in", leasehold, Access::Tokens(Vec::new()), Some(&token.text)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_page_says_that_its_sign_in_has_ended() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token = TokenStore::new(leasehold.clone()).create("ada", Role::Reader, None).await.unwrap();
    run("revoked", leasehold, Access::Tokens(Vec::new()), Some(&token.text)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_page_says_that_its_store_is_away() {
    let store = TestServer::open().await;
    let leasehold = Leasehold::connect(&store.base).await.unwrap();
    let world = World::new(leasehold, Access::Open).await;
    play("store-away", World { store: Some(store), ..world }, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_is_accessible_in_light_and_dark() {
    let scene = Scene::play().await;
    run("pages", scene.leasehold.clone(), Access::Open, None).await;
}
