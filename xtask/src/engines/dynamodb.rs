//! An emulator of DynamoDB, in memory.

use std::net::TcpStream;
use std::process::Command;

use anyhow::Result;

use super::lab::{Lab, free_ports};

pub(super) fn start(lab: &mut Lab) -> Result<()> {
    let [port] = free_ports()?;
    let folder = lab.folder("dynamodb")?;
    let mut command = Command::new(lab.programs.dynoxide()?);
    command.args(["--host", "127.0.0.1", "--port", &port.to_string()]).current_dir(folder);
    let server = lab.spawn("dynamodb", &mut command)?;
    server.until("listened", || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
    let url = format!("dynamodb://leasehold?endpoint=http://127.0.0.1:{port}&region=us-east-1");
    lab.export("LEASEHOLD_TEST_DYNAMODB", url);
    // The emulator takes any; the client asks for some.
    lab.export("AWS_ACCESS_KEY_ID", "test");
    lab.export("AWS_SECRET_ACCESS_KEY", "test");
    Ok(())
}
