//! Attacks on a server: its memory stays bounded, and a concurrent holder keeps its lease.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Sandbox, eventually};

use super::support::{Served, request};

/// Maximum growth of memory during an attack.
const CEILING: u64 = 64 * 1024;

/// Server with a holder during the attack.
struct Siege {
    sandbox: Sandbox,
    served: Served,
    idle: u64,
    holder: Child,
}

impl Siege {
    fn new(settings: &str) -> Self {
        let sandbox = Sandbox::new();
        let served = Served::ready(&sandbox, settings);
        let script = "echo up > up; exec sleep 600";
        let mut holder = sandbox.command(["run", "held", "--ttl", "20s", "--", "sh", "-c", script]);
        let holder = holder.env("LEASEHOLD_STORE", format!("http://{}", served.address)).spawn().unwrap();
        eventually("the holder works", || sandbox.path().join("up").exists());
        let idle = memory(&served);
        Self { sandbox, served, idle, holder }
    }

    /// Watches the server for longer than the ttl of the holder's lease.
    fn hold_out(mut self) {
        let until = Instant::now() + Duration::from_secs(22);
        let mut most = 0;
        while Instant::now() < until {
            let grown = memory(&self.served).saturating_sub(self.idle);
            most = most.max(grown);
            assert!(grown < CEILING, "the server has grown by {grown} KiB");
            assert!(self.holder.try_wait().unwrap().is_none(), "the holder has lost its lease");
            std::thread::sleep(Duration::from_millis(100));
        }
        let status = self.sandbox.json("locks status held");
        assert_eq!(status["holders"].as_array().unwrap().len(), 1, "{status}");
        println!("idle {} KiB, at most {most} KiB more", self.idle);
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.served.address).unwrap()
    }
}

impl Drop for Siege {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Returns the memory of a server, in KiB.
fn memory(served: &Served) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", served.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Sends all of it in the background, until the server accepts no more.
fn flood(mut stream: TcpStream, text: &[u8]) -> TcpStream {
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let _ = stream.write_all(text);
    stream
}

#[test]
fn requests_that_are_piled_up_and_never_read() {
    let siege = Siege::new("");
    let pile = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(20_000);
    let _open: Vec<_> = (0..5).map(|_| flood(siege.connect(), &pile)).collect();
    siege.hold_out();
}

#[test]
fn readers_that_never_read_are_disconnected() {
    let siege = Siege::new("[limits]\nwrite_time = \"2s\"\n");
    let pile = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
    let mut open: Vec<_> = (0..100).map(|_| flood(siege.connect(), &pile)).collect();
    // A connection that the server has closed fails at the next write.
    let is_gone = |stream: &mut TcpStream| stream.write_all(b"x").is_err();
    eventually("all are gone", || {
        std::thread::sleep(Duration::from_millis(200));
        open.retain_mut(|stream| !is_gone(stream));
        open.is_empty()
    });
    siege.hold_out();
}

/// Returns a list of wake-ups of this size.
fn listen(number: u64, ids: usize) -> Value {
    let id = |n: usize| format!("00000000-0000-4000-8000-{:012}", n + usize::try_from(number).unwrap() * ids);
    let leases: Vec<_> = (0..ids).map(id).collect();
    let queues: Vec<_> = (0..ids).map(|n| format!("q{n}")).collect();
    json!([{ "client": id(0), "number": 1, "leases": leases, "queues": queues }])
}

#[test]
fn long_lists_of_wake_ups_without_waiters() {
    let siege = Siege::new("");
    for number in 0..20 {
        let body = listen(number, 10_000).to_string();
        let head = "POST /api/v1/store/notifications HTTP/1.1\r\nhost: localhost\r\nleasehold-protocol: 1\r\n\
                    content-type: application/json\r\n";
        let text = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        drop(flood(siege.connect(), text.as_bytes()));
    }
    siege.hold_out();
}

#[test]
fn calls_with_too_large_bodies() {
    let siege = Siege::new("");
    let call = |path: &str, body: &Value| {
        let headers = [("leasehold-protocol", "1"), ("content-type", "application/json")];
        let first = request(siege.served.address, "POST", path, &headers, "[]");
        let clock = first.head.lines().find_map(|line| line.strip_prefix("leasehold-clock: ")).map(later);
        let clock = clock.unwrap_or_default();
        let headers = [headers[0], headers[1], ("leasehold-until", clock.as_str())];
        request(siege.served.address, "POST", path, &headers, &body.to_string()).status
    };
    let keys: Vec<_> = (0..1001).map(|n| format!("k{n}")).collect();
    assert_eq!(call("/api/v1/store/docs/get", &json!([keys])), 400);
    assert_eq!(call("/api/v1/store/docs/get", &json!([&keys[1..]])), 200);
    let many: Vec<_> = (0..200_000).map(|n| format!("key-{n}")).collect();
    assert_eq!(call("/api/v1/store/docs/get", &json!([many])), 413);
    // Documents of 2 MiB, which a worker may write.
    let large: Vec<_> = (0..5).map(|n| format!("large-{n}")).collect();
    for key in &large {
        let write = json!([key, null, "x".repeat(2 * 1024 * 1024), null]);
        assert_eq!(call("/api/v1/store/docs/put_if", &write), 200);
    }
    assert_eq!(call("/api/v1/store/docs/get", &json!([vec![&large[0]; 1000]])), 400);
    assert_eq!(call("/api/v1/store/docs/get", &json!([large])), 413);
    assert_eq!(call("/api/v1/store/docs/list", &json!(["large-", null, 1000])), 200);
    siege.hold_out();
}

#[test]
fn event_streams_that_are_never_read() {
    let siege = Siege::new("");
    let ask = b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let _open: Vec<_> = (0..300).map(|_| flood(siege.connect(), ask)).collect();
    // Each of these causes an event on each stream.
    for number in 0..300 {
        let path = format!("/api/v1/locks/busy-{number}/acquire");
        let headers = [("content-type", "application/json")];
        assert_eq!(request(siege.served.address, "POST", &path, &headers, "{}").status, 200);
    }
    siege.hold_out();
}

#[test]
fn headers_that_never_end_are_cut() {
    let siege = Siege::new("[limits]\nheader_time = \"2s\"\n");
    let mut open: Vec<_> = (0..200).map(|_| flood(siege.connect(), b"GET / HTTP/1.1\r\nx: ")).collect();
    eventually("all are gone", || {
        std::thread::sleep(Duration::from_millis(200));
        // One more byte does not keep the connection open.
        open.retain_mut(|stream| stream.write_all(b"y").is_ok());
        open.is_empty()
    });
    let endless = [&b"GET / HTTP/1.1\r\nx: "[..], &b"y".repeat(1024 * 1024)].concat();
    let _open: Vec<_> = (0..20).map(|_| flood(siege.connect(), &endless)).collect();
    siege.hold_out();
}

#[test]
fn deep_and_large_json_is_refused() {
    let siege = Siege::new("");
    let deep = |depth: usize| format!("{{\"payload\": {}1{}}}", "[".repeat(depth), "]".repeat(depth));
    let add = |body: &str| {
        let headers = [("content-type", "application/json")];
        request(siege.served.address, "POST", "/api/v1/queues/q/tasks", &headers, body).status
    };
    assert_eq!(add(&deep(50)), 201);
    for _ in 0..20 {
        assert_eq!(add(&deep(100_000)), 400);
        assert_eq!(add(&format!("{{\"payload\": \"{}\"}}", "x".repeat(900_000))), 201);
    }
    // A larger body is not read: the response arrives before the end of the body.
    let head = "POST /api/v1/queues/q/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 1000000000\r\n\r\n";
    let _open: Vec<_> = (0..20).map(|_| flood(siege.connect(), head.as_bytes())).collect();
    siege.hold_out();
}

/// Returns a time that is ahead of the server's clock.
fn later(clock: &str) -> String {
    let (instance, micros) = clock.trim().split_once('=').unwrap();
    format!("{instance}={}", micros.parse::<u64>().unwrap() + 60_000_000)
}

#[test]
fn one_address_cannot_use_all_connections() {
    let siege = Siege::new("[limits]\nconnections_per_address = 60\n");
    let idle: Vec<_> = (0..200).map(|_| siege.connect()).collect();
    // Another address of this machine is admitted.
    let curl = Command::new("curl")
        .args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--interface", "127.0.0.2", "--max-time", "10"])
        .arg(format!("http://{}/healthz", siege.served.address))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&curl.stdout), "200", "{curl:?}");
    drop(idle);
    siege.hold_out();
}

/// However many clients connect, files are left for a command.
#[test]
fn connections_leave_files_for_commands() {
    let sandbox = Sandbox::new();
    let settings = "[workflows.a]\ncommand = [\"sh\", \"-c\", \"echo done > done\"]\n";
    fs::write(sandbox.path().join("leasehold.toml"), settings).unwrap();
    let words = "--json serve --open --listen 127.0.0.1:0 --config leasehold.toml";
    let mut command = sandbox.command_in(&["sh", "-c", "ulimit -n 300; exec \"$@\"", "sh"], words);
    let served = Served::spawn(command.stdout(std::process::Stdio::piped()));
    eventually("ready", || served.get("/readyz").status == 200);
    let mut held = TcpStream::connect(served.address).unwrap();
    // Connections that are not accepted wait in the kernel; further ones get no reply.
    let connect = |_| TcpStream::connect_timeout(&served.address, Duration::from_millis(5)).ok();
    let strangers: Vec<_> = (0..400).filter_map(connect).collect();
    std::thread::sleep(Duration::from_secs(1));
    // Other processes of the same user cannot list its files.
    held.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut page = BufReader::new(held.try_clone().unwrap()).lines().map(Result::unwrap);
    let files = page.find_map(|line| line.strip_prefix("process_open_fds ").map(str::to_owned)).unwrap();
    assert!(files.parse::<u32>().unwrap() < 250, "{files} of 300 files are in use");
    let start =
        "POST /api/v1/workflows/a/executions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
    held.write_all(start.as_bytes()).unwrap();
    eventually("the command ran", || sandbox.path().join("done").exists());
    drop(strangers);
}

/// Once a token existed, a server without a valid token admits no request.
#[test]
fn a_server_without_a_valid_token_admits_no_request() {
    let sandbox = Sandbox::new();
    let token = sandbox.json("token new --name ada --role admin");
    sandbox.ok(&format!("token revoke {}", token["id"].as_str().unwrap()));
    let served = Served::ready(&sandbox, "");
    assert_eq!(served.get("/api/v1/locks").status, 401);
    assert_eq!(served.post("/api/v1/locks/a/acquire", &json!({})).status, 401);
}
