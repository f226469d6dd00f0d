//! Redis without and with TLS, and the nodes of a cluster and a sentinel.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::environment::{Environment, Server, free_ports};

pub(super) fn start(env: &mut Environment) -> Result<()> {
    let [plain, secure] = free_ports()?;
    node(env, "redis", plain, &[])?;
    env.export("LEASEHOLD_TEST_REDIS", format!("redis://127.0.0.1:{plain}"));

    let mut command = server(env, "redis-tls")?;
    command.args(["--port", "0", "--tls-port", &secure.to_string(), "--tls-auth-clients", "no"]);
    command.arg("--tls-cert-file").arg(&env.tls.certificate).arg("--tls-key-file").arg(&env.tls.key);
    command.arg("--tls-ca-cert-file").arg(&env.tls.authority);
    let server = env.spawn("redis-tls", &mut command)?;
    server.wait_until("listened", || TcpStream::connect(("127.0.0.1", secure)).is_ok())?;
    env.export("LEASEHOLD_TEST_REDIS_TLS", format!("rediss://localhost:{secure}"));

    let program = env.programs.redis()?;
    env.export("LEASEHOLD_TEST_REDIS_BIN", program.display().to_string());
    Ok(())
}

/// Starts a Redis without TLS, with these settings, and waits until it responds.
pub(super) fn node(env: &mut Environment, name: &str, port: u16, settings: &[&str]) -> Result<Server> {
    let mut command = server(env, name)?;
    command.args(["--port", &port.to_string()]).args(settings);
    let server = env.spawn(name, &mut command)?;
    server.wait_until("answered", || send(port, "PING").is_ok())?;
    Ok(server)
}

/// Returns the command of a persistent Redis without eviction: when memory is full, it rejects writes
/// and never drops a lock.
fn server(env: &Environment, name: &str) -> Result<Command> {
    let folder = env.folder(name)?;
    let mut command = Command::new(env.programs.redis()?);
    command.current_dir(&folder).arg("--dir").arg(&folder).args(["--bind", "127.0.0.1"]);
    command.args(["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]);
    // A benchmark enqueues a million tasks.
    let max_memory = if env.durable { "1gb" } else { "256mb" };
    command.args(["--maxmemory", max_memory, "--maxmemory-policy", "noeviction"]);
    Ok(command)
}

/// Sends a command and returns the reply without its framing.
pub(super) fn send(port: u16, line: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(format!("{line}\r\n").as_bytes())?;
    let mut stream = BufReader::new(stream);
    let mut first = String::new();
    stream.read_line(&mut first)?;
    let first = first.trim_end();
    let (kind, rest) = first.split_at_checked(1).context("no reply")?;
    match kind {
        "+" | ":" => Ok(rest.to_owned()),
        "$" => {
            let mut text = vec![0; rest.parse()?];
            stream.read_exact(&mut text)?;
            Ok(String::from_utf8(text)?)
        }
        _ => bail!("Redis replied '{first}' to '{line}'"),
    }
}
