//! Measures a server with many waiters: memory per waiter, CPU time while idle, and hand-over latency.
//!
//! `cargo run --release -p leasehold-server --example waiters -- [STORE] [MANY] [LOCKS] [ENGINE]`
//!
//! Starts a server in a separate process. First 100 clients wait for one lock, which is handed over
//! to each of them: the latency is the time from sending a release to the arrival of the next
//! waiter's response. Then MANY (10000) clients wait for LOCKS (100) locks and stay idle for 10 s:
//! the example prints the CPU time of the server, and that of the process ENGINE and its children
//! if ENGINE is given. `… -- redis://127.0.0.1 1000 1 $(pidof redis-server)` measures the cost of
//! 1,000 idle waiters of one lock.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::{BootInstant, Leasehold};
use leasehold_server::{Access, Server, listen};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

type Any<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Any<()> {
    let mut args = std::env::args().skip(1);
    let store = args.next().unwrap_or_else(|| "memory:".to_owned());
    if store == "serve" {
        return serve(&args.next().unwrap_or_default()).await;
    }
    let many = args.next().map_or(Ok(10_000), |many| many.parse())?;
    let locks = args.next().map_or(Ok(100), |locks| locks.parse())?;
    let engine = args.next().map(|engine| engine.parse()).transpose()?;
    let (mut child, address) = start(&store)?;
    let done = async {
        measure_hand_over(&address, 100).await?;
        let processes = Processes { server: child.id(), engine };
        measure_idle_waiters(&address, &processes, many, locks).await
    };
    let done = done.await;
    child.kill()?;
    child.wait()?;
    done
}

async fn serve(store: &str) -> Any<()> {
    let server = Server::builder(Leasehold::connect(store).await?).access(Access::Open).build();
    let listening = listen(&server, tokio::net::TcpListener::bind("127.0.0.1:0").await?)?;
    println!("{}", listening.address());
    std::future::pending().await
}

fn start(store: &str) -> Any<(Child, String)> {
    let mut child =
        Command::new(std::env::current_exe()?).args(["serve", store]).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    Ok((child, line.trim().to_owned()))
}

/// Hands one lock over from waiter to waiter and prints the latency.
async fn measure_hand_over(address: &str, waiters: usize) -> Any<()> {
    let mut held = Peer::open(address).await?;
    let mut lock = held.acquire("hot", 0).await?;
    let mut waiting = JoinSet::new();
    for _ in 0..waiters {
        let mut peer = Peer::open(address).await?;
        waiting.spawn(async move {
            let lock = peer.acquire("hot", 60).await?;
            Any::Ok((BootInstant::now(), peer, lock))
        });
    }
    wait_until(address, "hot", waiters).await?;
    let mut took = Vec::new();
    for _ in 0..waiters {
        let sent = BootInstant::now();
        let release = json!({ "leaseId": lock["leaseId"], "token": lock["token"] });
        let answer = held.call("POST", "/api/v1/locks/hot/release", &release);
        let (answer, next) = tokio::join!(answer, waiting.join_next());
        answer?;
        let (arrived, peer, next) = next.ok_or("no waiter is left")???;
        took.push(arrived.after(sent));
        (held, lock) = (peer, next);
    }
    took.sort();
    let at = |part: usize| took[(took.len() * part / 100).min(took.len() - 1)];
    println!(
        "hand-over among {waiters}: median {:?}, p99 {:?}, most {:?}",
        at(50),
        at(99),
        took[took.len() - 1]
    );
    Ok(())
}

/// Processes whose CPU time is measured.
struct Processes {
    server: u32,
    engine: Option<u32>,
}

impl Processes {
    /// Returns the CPU ticks of the server, and of the engine with its children.
    fn cpu(&self) -> Any<[u64; 2]> {
        let engine = self.engine.map(with_children).transpose()?.unwrap_or_default();
        // A child may have ended in the meantime.
        let engine = engine.into_iter().map(|process| cpu_ticks(process).unwrap_or(0)).sum();
        Ok([cpu_ticks(self.server)?, engine])
    }
}

/// Measures many concurrent waiters and prints the results.
async fn measure_idle_waiters(address: &str, processes: &Processes, many: usize, locks: usize) -> Any<()> {
    let server = processes.server;
    let mut holders = Vec::new();
    for lock in 0..locks {
        let mut peer = Peer::open(address).await?;
        let name = format!("crowd-{lock}");
        holders.push((name.clone(), peer.acquire(&name, 0).await?));
    }
    let before = resident(server)?;
    let began = BootInstant::now();
    let mut waiting = JoinSet::new();
    for number in 0..many {
        let mut peer = Peer::open(address).await?;
        let name = format!("crowd-{}", number % locks);
        waiting.spawn(async move { peer.acquire(&name, 60).await });
    }
    for lock in 0..locks {
        wait_until(address, &format!("crowd-{lock}"), many / locks).await?;
    }
    let ready = BootInstant::now().after(began);
    let cpu = processes.cpu()?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    // A tick is 10 ms: their number in 10 s is milliseconds per second, or tenths of a percent of
    // one core.
    let after = processes.cpu()?;
    let [busy, engine] = [after[0] - cpu[0], after[1].saturating_sub(cpu[1])];
    let each = (resident(server)? - before) * 1024 / many as u64;
    println!(
        "{many} wait for {locks} locks after {ready:?}: {each} bytes each; {busy} ms of CPU a second meanwhile, \
         {engine} of the engine"
    );
    let mut took = Vec::new();
    for (name, lock) in holders {
        // The server closes connections that are idle for too long.
        let mut peer = Peer::open(address).await?;
        let sent = BootInstant::now();
        let release = json!({ "leaseId": lock["leaseId"], "token": lock["token"] });
        peer.call("POST", &format!("/api/v1/locks/{name}/release"), &release).await?;
        waiting.join_next().await.ok_or("no waiter is left")???;
        took.push(BootInstant::now().after(sent));
    }
    took.sort();
    println!("hand-over among them: median {:?}, most {:?}", took[took.len() / 2], took[took.len() - 1]);
    waiting.abort_all();
    Ok(())
}

async fn wait_until(address: &str, name: &str, waiters: usize) -> Any<()> {
    let mut peer = Peer::open(address).await?;
    loop {
        let lock = peer.call("GET", &format!("/api/v1/locks/{name}"), &Value::Null).await?;
        if lock["waiters"].as_array().is_some_and(|found| found.len() >= waiters) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Connection with one request at a time.
struct Peer(TcpStream);

impl Peer {
    async fn open(address: &str) -> Any<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    async fn acquire(&mut self, name: &str, wait: u32) -> Any<Value> {
        let body = json!({ "ttlSeconds": 120, "waitSeconds": wait });
        let answer = self.call("POST", &format!("/api/v1/locks/{name}/acquire"), &body).await?;
        answer.get("lock").cloned().ok_or_else(|| answer.to_string().into())
    }

    async fn call(&mut self, method: &str, path: &str, body: &Value) -> Any<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        self.0.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        loop {
            let mut part = [0; 2048];
            let count = self.0.read(&mut part).await?;
            if count == 0 {
                return Err("the connection ended".into());
            }
            answer.extend_from_slice(&part[..count]);
            let text = String::from_utf8_lossy(&answer);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.ok_or("no length")?.parse()? {
                return Ok(serde_json::from_str(body)?);
            }
        }
    }
}

/// Returns the resident memory of a process in KiB.
fn resident(process: u32) -> Any<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Returns a process and its children.
fn with_children(process: u32) -> Any<Vec<u32>> {
    let mut all = vec![process];
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let children = std::fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    Ok(all)
}

/// Returns the CPU time of a process in ticks.
fn cpu_ticks(process: u32) -> Any<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let after_name = stat.rsplit_once(')').ok_or("no name")?.1;
    let fields: Vec<_> = after_name.split_whitespace().collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}
