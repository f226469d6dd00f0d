//! PostgreSQL, with TLS on the same port for whoever asks for it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::lab::{Lab, free_ports, run};
use super::programs::is_root;

/// User, password and database.
pub(super) const NAME: &str = "leasehold";
/// A module of PostgreSQL's own that counts statements.
const COUNTER: &str = "pg_stat_statements";

/// Starts it; the answer is its port.
pub(super) fn start(lab: &mut Lab) -> Result<u16> {
    let bin = lab.programs.postgres()?;
    let [port] = free_ports()?;
    let folder = lab.folder("postgres")?;
    let (data, password, key) = (folder.join("data"), folder.join("password"), folder.join("server.key"));
    fs::write(&password, NAME)?;
    fs::copy(&lab.tls.key, &key)?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
    give_away(&[&folder, &password, &key])?;

    let mut initdb = unprivileged(&bin.join("initdb"));
    initdb.args(["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--username", NAME]);
    initdb.arg("--pwfile").arg(&password).arg("--pgdata").arg(&data).current_dir(&folder);
    run(&mut initdb).context("the tests' database cannot be made")?;

    let mut postgres = unprivileged(&bin.join("postgres"));
    postgres.arg("-D").arg(&data).current_dir(&folder);
    let mut set = |name: &str, value: &str| {
        postgres.args(["-c", &format!("{name}={value}")]);
    };
    set("listen_addresses", "127.0.0.1");
    set("port", &port.to_string());
    set("unix_socket_directories", "");
    set("max_connections", "300");
    set("shared_buffers", "64MB");
    set("jit", "off");
    set("ssl", "on");
    set("ssl_cert_file", &lab.tls.certificate.display().to_string());
    set("ssl_key_file", &key.display().to_string());
    if lab.durable {
        // Benchmarks count what is sent; a new statement for each of their schemas must not push another one out.
        set("shared_preload_libraries", COUNTER);
        set("pg_stat_statements.max", "50000");
        set("pg_stat_statements.save", "off");
    } else {
        set("fsync", "off");
        set("full_page_writes", "off");
    }
    let server = lab.spawn("postgres", &mut postgres)?;
    let sql =
        |database: &str, sql: &str| run(psql(&bin, port).args(["--dbname", database, "--command", sql]));
    server.until("answered", || sql("postgres", "SELECT 1").is_ok())?;
    sql("postgres", &format!("CREATE DATABASE {NAME}"))?;
    if lab.durable {
        sql(NAME, &format!("CREATE EXTENSION {COUNTER}"))?;
    }
    lab.export("LEASEHOLD_TEST_POSTGRES", url(port));
    lab.export("LEASEHOLD_TEST_POSTGRES_BIN", bin.display().to_string());
    Ok(port)
}

pub(super) fn url(port: u16) -> String {
    format!("postgres://{NAME}:{NAME}@127.0.0.1:{port}/{NAME}")
}

fn psql(bin: &Path, port: u16) -> Command {
    let mut psql = Command::new(bin.join("psql"));
    psql.args(["--no-psqlrc", "--host=127.0.0.1", "--port", &port.to_string(), "--username", NAME]);
    psql.env("PGPASSWORD", NAME).env("PGCONNECT_TIMEOUT", "5");
    psql
}

/// Nobody in particular.
const NOBODY: u32 = 65534;

/// PostgreSQL and pgbouncer refuse to run as root. `setpriv` becomes the program, so that signals reach it.
pub(super) fn unprivileged(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()]);
    command.arg("--").arg(program);
    command
}

/// Makes files those of whoever [`unprivileged`] programs run as.
pub(super) fn give_away(paths: &[&Path]) -> Result<()> {
    let theirs = |path: &&Path| chown(path, Some(NOBODY), Some(NOBODY));
    if is_root() {
        paths.iter().try_for_each(theirs).context("cannot give files to the user of the database")?;
    }
    Ok(())
}
