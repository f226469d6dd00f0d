//! etcd with one member, which syncs to disk.

use std::net::TcpStream;
use std::process::Command;

use anyhow::Result;

use super::Kind;
use super::environment::{Environment, free_ports};

pub(super) fn start(env: &mut Environment) -> Result<()> {
    let [clients, peers] = free_ports()?.map(|port| format!("127.0.0.1:{port}"));
    let folder = env.folder("etcd")?;
    let mut command = Command::new(env.programs.etcd()?);
    command.current_dir(&folder).arg("--data-dir").arg(folder.join("data"));
    let (client_url, peer_url) = (format!("http://{clients}"), format!("http://{peers}"));
    command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
    command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
    command.args(["--initial-cluster", &format!("default={peer_url}"), "--log-level", "error"]);
    let server = env.spawn("etcd", &mut command)?;
    server.wait_until("listened", || TcpStream::connect(&clients).is_ok())?;
    env.export(&Kind::Etcd.variable(), client_url);
    Ok(())
}
