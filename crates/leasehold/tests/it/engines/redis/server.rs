//! Private Redis server of a test, which the test may configure, fill and restart.

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, FromRedisValue, RedisResult};

use crate::engines::support::engine_at;

/// Server on a port of its own; its folder is removed with it.
pub(super) struct Server {
    program: String,
    port: u16,
    folder: tempfile::TempDir,
    settings: Vec<String>,
    child: Child,
}

impl Server {
    /// Starts a server with these lines of its configuration file.
    pub(super) async fn start(settings: &[&str]) -> Self {
        Self::start_as(settings, false).await
    }

    /// Starts a Sentinel.
    pub(super) async fn start_sentinel(settings: &[&str]) -> Self {
        Self::start_as(settings, true).await
    }

    async fn start_as(settings: &[&str], sentinel: bool) -> Self {
        let program = engine_at("redis-bin");
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let settings: Vec<_> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let child = run(&program, port, folder.path(), &settings, sentinel);
        let server = Self { program, port, folder, settings, child };
        server.wait_until_ready().await;
        server
    }

    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends a command as an administrator.
    pub(super) async fn command<T: FromRedisValue>(&self, arguments: &[&str]) -> RedisResult<T> {
        let mut conn = connect(&self.url()).await?;
        let mut cmd = ::redis::cmd(arguments[0]);
        for argument in &arguments[1..] {
            cmd.arg(argument);
        }
        cmd.query_async(&mut conn).await
    }

    /// Returns how often a command was called.
    pub(super) async fn calls(&self, command: &str) -> u64 {
        let info: String = self.command(&["INFO", "commandstats"]).await.unwrap();
        let start = format!("cmdstat_{command}:calls=");
        let count = info.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next()?.parse().ok());
        count.unwrap_or(0)
    }

    /// Sends a signal to the server: `STOP`, `CONT`.
    pub(super) fn signal(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Kills the server, as a power cut would.
    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts the server again with its port and its files.
    pub(super) async fn restart(&mut self) {
        self.child = run(&self.program, self.port, self.folder.path(), &self.settings, false);
        self.wait_until_ready().await;
    }

    async fn wait_until_ready(&self) {
        let wait = async {
            while self.command::<String>(&["PING"]).await.is_err_and(|error| error.code() != Some("NOAUTH")) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let limit = Duration::from_secs(20);
        tokio::time::timeout(limit, wait).await.expect("the server starts within 20 s");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connects to a server. The client's default timeout of half a second is too short for a busy machine.
pub(super) async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let timeout = Some(Duration::from_secs(20));
    let config = AsyncConnectionConfig::new().set_connection_timeout(timeout).set_response_timeout(timeout);
    Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

pub(super) fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn run(program: &str, port: u16, folder: &Path, settings: &[String], sentinel: bool) -> Child {
    let file = folder.join("redis.conf");
    // Written at every start: a Sentinel writes its state into this file.
    let mut text = std::fs::File::create(&file).unwrap();
    writeln!(text, "bind 127.0.0.1\nport {port}\ndir {}\nsave \"\"\ndaemonize no", folder.display()).unwrap();
    for setting in settings {
        writeln!(text, "{setting}").unwrap();
    }
    let mut command = Command::new(program);
    command.arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
    if sentinel {
        command.arg("--sentinel");
    }
    command.spawn().unwrap()
}
