//! pgbouncer before PostgreSQL: a connection lasts a transaction, and nothing that belongs to a session survives it.

use std::fs;

use anyhow::Result;

use super::lab::{Lab, free_ports};
use super::postgres::{NAME, give_away, unprivileged, url};

/// Starts it before the PostgreSQL at this port.
pub(super) fn start(lab: &mut Lab, postgres: u16) -> Result<()> {
    let [port] = free_ports()?;
    let folder = lab.folder("pgbouncer")?;
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
    give_away(&[&folder, &settings, &users])?;
    let program = lab.programs.pgbouncer()?;
    let server = lab.spawn("pgbouncer", unprivileged(&program).arg(&settings).current_dir(&folder))?;
    server.until("listened", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok())?;
    lab.export("LEASEHOLD_TEST_POSTGRES_POOLER", url(port));
    Ok(())
}
