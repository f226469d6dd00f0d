//! Redis: one that speaks plainly, one that speaks TLS; and what a cluster and a sentinel are made of.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::lab::{Lab, Server, free_ports};

pub(super) fn start(lab: &mut Lab) -> Result<()> {
    let [plain, secure] = free_ports()?;
    node(lab, "redis", plain, &[])?;
    lab.export("LEASEHOLD_TEST_REDIS", format!("redis://127.0.0.1:{plain}"));

    let mut command = server(lab, "redis-tls")?;
    command.args(["--port", "0", "--tls-port", &secure.to_string(), "--tls-auth-clients", "no"]);
    command.arg("--tls-cert-file").arg(&lab.tls.certificate).arg("--tls-key-file").arg(&lab.tls.key);
    command.arg("--tls-ca-cert-file").arg(&lab.tls.authority);
    let server = lab.spawn("redis-tls", &mut command)?;
    server.until("listened", || TcpStream::connect(("127.0.0.1", secure)).is_ok())?;
    lab.export("LEASEHOLD_TEST_REDIS_TLS", format!("rediss://localhost:{secure}"));

    let program = lab.programs.redis()?;
    lab.export("LEASEHOLD_TEST_REDIS_BIN", program.display().to_string());
    Ok(())
}

/// Starts a Redis that speaks plainly, with these settings, and waits until it answers.
pub(super) fn node(lab: &mut Lab, name: &str, port: u16, settings: &[&str]) -> Result<Server> {
    let mut command = server(lab, name)?;
    command.args(["--port", &port.to_string()]).args(settings);
    let server = lab.spawn(name, &mut command)?;
    server.until("answered", || ask(port, "PING").is_ok())?;
    Ok(server)
}

/// One that keeps what it is told, and refuses more when it is full: it never forgets a lock to make room.
fn server(lab: &Lab, name: &str) -> Result<Command> {
    let folder = lab.folder(name)?;
    let mut command = Command::new(lab.programs.redis()?);
    command.current_dir(&folder).arg("--dir").arg(&folder).args(["--bind", "127.0.0.1"]);
    command.args(["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]);
    // A benchmark puts a million tasks into it.
    let most = if lab.durable { "1gb" } else { "256mb" };
    command.args(["--maxmemory", most, "--maxmemory-policy", "noeviction"]);
    Ok(command)
}

/// Says a line and reads the answer, without what frames it.
pub(super) fn ask(port: u16, line: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(format!("{line}\r\n").as_bytes())?;
    let mut stream = BufReader::new(stream);
    let mut first = String::new();
    stream.read_line(&mut first)?;
    let first = first.trim_end();
    let (kind, rest) = first.split_at_checked(1).context("no answer")?;
    match kind {
        "+" | ":" => Ok(rest.to_owned()),
        "$" => {
            let mut text = vec![0; rest.parse()?];
            stream.read_exact(&mut text)?;
            Ok(String::from_utf8(text)?)
        }
        _ => bail!("Redis answers '{first}' to '{line}'"),
    }
}
