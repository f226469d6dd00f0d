//! PostgreSQL, with optional TLS on the same port.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::environment::{Environment, free_ports, run};
use super::programs::is_root;

/// User, password and database.
pub(super) const NAME: &str = "leasehold";
/// Extension of PostgreSQL that counts statements.
const COUNTER: &str = "pg_stat_statements";

/// Starts PostgreSQL; returns its port.
pub(super) fn start(env: &mut Environment) -> Result<u16> {
    let bin = env.programs.postgres()?;
    let [port] = free_ports()?;
    let folder = env.folder("postgres")?;
    let (data, password, key) = (folder.join("data"), folder.join("password"), folder.join("server.key"));
    fs::write(&password, NAME)?;
    fs::copy(&env.tls.key, &key)?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
    chown_unprivileged(&[&folder, &password, &key])?;

    let mut initdb = unprivileged(&bin.join("initdb"));
    initdb.args(["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--username", NAME]);
    initdb.arg("--pwfile").arg(&password).arg("--pgdata").arg(&data).current_dir(&folder);
    run(&mut initdb).context("the database of the tests cannot be created")?;

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
    set("ssl_cert_file", &env.tls.certificate.display().to_string());
    set("ssl_key_file", &key.display().to_string());
    if env.durable {
        // Benchmarks count statements; the new statements of their schemas must not evict others.
        set("shared_preload_libraries", COUNTER);
        set("pg_stat_statements.max", "50000");
        set("pg_stat_statements.save", "off");
    } else {
        set("fsync", "off");
        set("full_page_writes", "off");
    }
    let server = env.spawn("postgres", &mut postgres)?;
    let sql =
        |database: &str, sql: &str| run(psql(&bin, port).args(["--dbname", database, "--command", sql]));
    server.wait_until("answered", || sql("postgres", "SELECT 1").is_ok())?;
    sql("postgres", &format!("CREATE DATABASE {NAME}"))?;
    if env.durable {
        sql(NAME, &format!("CREATE EXTENSION {COUNTER}"))?;
    }
    env.export("LEASEHOLD_TEST_POSTGRES", url(port));
    env.export("LEASEHOLD_TEST_POSTGRES_BIN", bin.display().to_string());
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

/// User and group id without privileges.
const UNPRIVILEGED: u32 = 65534;

/// Returns the command of a program without root privileges: PostgreSQL and pgbouncer refuse to run as
/// root. `setpriv` executes the program in its own process, so that signals reach it.
pub(super) fn unprivileged(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args([
        format!("--reuid={UNPRIVILEGED}"),
        format!("--regid={UNPRIVILEGED}"),
        "--clear-groups".to_owned(),
    ]);
    command.arg("--").arg(program);
    command
}

/// Makes the user of [`unprivileged`] programs the owner of these files.
pub(super) fn chown_unprivileged(paths: &[&Path]) -> Result<()> {
    let chown_one = |path: &&Path| chown(path, Some(UNPRIVILEGED), Some(UNPRIVILEGED));
    if is_root() {
        paths.iter().try_for_each(chown_one).context("cannot change the owner of the database files")?;
    }
    Ok(())
}
