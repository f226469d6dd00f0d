//! pgbouncer in front of PostgreSQL, in transaction mode: no session state survives a transaction.

use std::fs;

use anyhow::Result;

use super::environment::{Environment, free_ports};
use super::postgres::{NAME, chown_unprivileged, unprivileged, url};

/// Starts pgbouncer in front of the PostgreSQL at this port.
pub(super) fn start(env: &mut Environment, postgres: u16) -> Result<()> {
    let [port] = free_ports()?;
    let folder = env.folder("pgbouncer")?;
    let (settings, users) = (folder.join("pgbouncer.ini"), folder.join("users.txt"));
    fs::write(&users, format!("\"{NAME}\" \"{NAME}\"\n"))?;
    fs::write(
        &settings,
        format!(
            "[databases]\n\
             {NAME} = host=127.0.0.1 port={postgres} dbname={NAME}\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\n\
             listen_port = {port}\n\
             unix_socket_dir =\n\
             auth_type = scram-sha-256\n\
             auth_file = {}\n\
             pool_mode = transaction\n\
             max_client_conn = 500\n\
             default_pool_size = 40\n",
            users.display()
        ),
    )?;
    chown_unprivileged(&[&folder, &settings, &users])?;
    let program = env.programs.pgbouncer()?;
    let server = env.spawn("pgbouncer", unprivileged(&program).arg(&settings).current_dir(&folder))?;
    server.wait_until("listened", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok())?;
    env.export("LEASEHOLD_TEST_POSTGRES_POOLER", url(port));
    Ok(())
}
