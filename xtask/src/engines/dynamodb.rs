//! Emulator of DynamoDB, in memory.

use std::net::TcpStream;
use std::process::Command;

use anyhow::Result;

use super::environment::{Environment, free_ports};

pub(super) fn start(env: &mut Environment) -> Result<()> {
    let [port] = free_ports()?;
    let folder = env.folder("dynamodb")?;
    let mut command = Command::new(env.programs.dynoxide()?);
    command.args(["--host", "127.0.0.1", "--port", &port.to_string()]).current_dir(folder);
    let server = env.spawn("dynamodb", &mut command)?;
    server.wait_until("listened", || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
    let url = format!("dynamodb://leasehold?endpoint=http://127.0.0.1:{port}&region=us-east-1");
    env.export("LEASEHOLD_TEST_DYNAMODB", url);
    // The emulator accepts any credentials; the client requires some.
    env.export("AWS_ACCESS_KEY_ID", "test");
    env.export("AWS_SECRET_ACCESS_KEY", "test");
    Ok(())
}
