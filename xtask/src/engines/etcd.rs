//! etcd: one member, which waits for the disk.

use std::net::TcpStream;
use std::process::Command;

use anyhow::Result;

use super::Kind;
use super::lab::{Lab, free_ports};

pub(super) fn start(lab: &mut Lab) -> Result<()> {
    let [clients, peers] = free_ports()?.map(|port| format!("127.0.0.1:{port}"));
    let folder = lab.folder("etcd")?;
    let mut command = Command::new(lab.programs.etcd()?);
    command.current_dir(&folder).arg("--data-dir").arg(folder.join("data"));
    let (here, among_members) = (format!("http://{clients}"), format!("http://{peers}"));
    command.args(["--listen-client-urls", &here, "--advertise-client-urls", &here]);
    command.args(["--listen-peer-urls", &among_members, "--initial-advertise-peer-urls", &among_members]);
    command.args(["--initial-cluster", &format!("default={among_members}"), "--log-level", "error"]);
    let server = lab.spawn("etcd", &mut command)?;
    server.until("listened", || TcpStream::connect(&clients).is_ok())?;
    lab.export(&Kind::Etcd.variable(), here);
    Ok(())
}
