//! Server process for tests, and a minimal HTTP client.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Ran, Sandbox, eventually};

/// Running server.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    child: Option<Child>,
}

/// Response of the server.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Value,
}

impl Served {
    /// Starts a server with these settings; it listens when this returns.
    pub(crate) fn start(sandbox: &Sandbox, settings: &str) -> Self {
        let file = sandbox.path().join("leasehold.toml");
        fs::write(&file, settings).unwrap();
        Self::with(sandbox, &["--config", "leasehold.toml"])
    }

    /// Starts a server as [`Self::start`] does, and waits until its store is ready.
    pub(crate) fn ready(sandbox: &Sandbox, settings: &str) -> Self {
        let served = Self::start(sandbox, settings);
        eventually("ready", || served.get("/readyz").status == 200);
        served
    }

    /// Starts a server with these arguments and `--open`.
    pub(crate) fn with(sandbox: &Sandbox, words: &[&str]) -> Self {
        Self::closed(sandbox, &[&["--open"], words].concat())
    }

    /// Starts a server with these arguments.
    pub(crate) fn closed(sandbox: &Sandbox, words: &[&str]) -> Self {
        let mut command = sandbox.command(["--json", "serve"]);
        if !words.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.args(words).stdout(Stdio::piped()).stderr(Stdio::inherit());
        Self::spawn(&mut command)
    }

    /// Starts this command, a server that prints its address as JSON.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it said: {line}"));
        Self { address: said["listening"].as_str().unwrap().parse().unwrap(), child: Some(child) }
    }

    /// Starts a server with these settings that logs everything to `stderr`.
    pub(crate) fn logging(sandbox: &Sandbox, settings: &str, stderr: impl Into<Stdio>) -> Self {
        fs::write(sandbox.path().join("leasehold.toml"), settings).unwrap();
        let words = ["--json", "serve", "--open", "--listen", "127.0.0.1:0", "--config", "leasehold.toml"];
        let mut command = sandbox.command(words);
        Self::spawn(command.env("LEASEHOLD_LOG", "debug").stdout(Stdio::piped()).stderr(stderr))
    }

    /// Starts this command, a server whose address is not read.
    pub(crate) fn unannounced(command: &mut Command) -> Self {
        Self { address: ([127, 0, 0, 1], 0).into(), child: Some(command.spawn().unwrap()) }
    }

    /// Starts a server with these settings and this log filter, and reads its stderr no further than its address. The
    /// stream must be kept as long as the server.
    pub(crate) fn unread(sandbox: &Sandbox, settings: &str, log: &str) -> (Self, BufReader<ChildStderr>) {
        fs::write(sandbox.path().join("leasehold.toml"), settings).unwrap();
        let words = ["serve", "--open", "--listen", "127.0.0.1:0", "--config", "leasehold.toml"];
        let mut command = sandbox.command(words);
        command.env("LEASEHOLD_LOG", log);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let address: SocketAddr = loop {
            line.clear();
            assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "it has exited");
            let address = line.split_once("listening on http://").and_then(|(_, rest)| rest.split_once(','));
            if let Some((address, _)) = address {
                break address.parse().unwrap();
            }
        };
        (Self { address, child: Some(child) }, stderr)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Waits for the end of the server.
    pub(crate) fn wait(mut self) -> Ran {
        self.child.take().unwrap().wait_with_output().unwrap().into()
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        request(self.address, "GET", path, &[], "")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_with(path, &[], body)
    }

    pub(crate) fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        let mut all = vec![("content-type", "application/json")];
        all.extend_from_slice(headers);
        request(self.address, "POST", path, &all, &body.to_string())
    }

    /// Starts an execution.
    pub(crate) fn start_key(&self, workflow: &str, key: &str) -> Reply {
        let path = format!("/api/v1/workflows/{workflow}/executions");
        self.post_with(&path, &[("idempotency-key", key)], &json!({ "input": { "a": 1 } }))
    }

    pub(crate) fn execution(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/executions/{id}")).body
    }

    /// Waits until an execution has this state.
    pub(crate) fn until(&self, id: &str, status: &str) -> Value {
        let mut seen = Value::Null;
        eventually(&format!("{id} {status}"), || {
            seen = self.execution(id);
            seen["state"] == status
        });
        seen
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Reply {
    pub(crate) fn id(&self) -> String {
        self.body["executionId"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }
}

pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Reply {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let headers: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let headers = headers.concat();
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned()));
    Reply { status, head: head.to_ascii_lowercase(), body }
}

/// Whether a process exists.
pub(crate) fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}
