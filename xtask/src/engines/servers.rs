//! Servers of the tests and benchmarks: PostgreSQL with pgbouncer, Redis alone, as a Cluster and with
//! Sentinel, the emulator of DynamoDB, and etcd.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Kind;
use super::environment::{Environment, Server, free_ports};
use super::fetch::run;
use super::programs::is_root;

const SLOTS: [&str; 3] = ["0 5460", "5461 10922", "10923 16383"];
const SERVICE: &str = "leasehold";
/// User, password and database.
const NAME: &str = "leasehold";
const COUNTER: &str = "pg_stat_statements";
/// User and group id without privileges.
const UNPRIVILEGED: u32 = 65534;

/// Starts PostgreSQL, with optional TLS on the same port; returns its port.
pub(super) fn start_postgres(env: &mut Environment) -> Result<u16> {
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

fn url(port: u16) -> String {
    format!("postgres://{NAME}:{NAME}@127.0.0.1:{port}/{NAME}")
}

fn psql(bin: &Path, port: u16) -> Command {
    let mut psql = Command::new(bin.join("psql"));
    psql.args(["--no-psqlrc", "--host=127.0.0.1", "--port", &port.to_string(), "--username", NAME]);
    psql.env("PGPASSWORD", NAME).env("PGCONNECT_TIMEOUT", "5");
    psql
}

/// Returns the command of a program without root privileges: PostgreSQL and pgbouncer refuse to run as
/// root. `setpriv` executes the program in its own process, so that signals reach it.
fn unprivileged(program: &Path) -> Command {
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
fn chown_unprivileged(paths: &[&Path]) -> Result<()> {
    let chown_one = |path: &&Path| chown(path, Some(UNPRIVILEGED), Some(UNPRIVILEGED));
    if is_root() {
        paths.iter().try_for_each(chown_one).context("cannot change the owner of the database files")?;
    }
    Ok(())
}

/// Starts pgbouncer in front of the PostgreSQL at this port, in transaction mode: no session state
/// survives a transaction. A second one ignores startup settings, which the first one rejects.
pub(super) fn start_pgbouncer(env: &mut Environment, postgres: u16) -> Result<()> {
    let ignore = "ignore_startup_parameters = options\n";
    for (name, variable, more) in [
        ("pgbouncer", "LEASEHOLD_TEST_POSTGRES_POOLER", ""),
        ("pgbouncer-silent", "LEASEHOLD_TEST_POSTGRES_SILENT_POOLER", ignore),
    ] {
        let [port] = free_ports()?;
        let folder = env.folder(name)?;
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
                 default_pool_size = 40\n\
                 {more}",
                users.display()
            ),
        )?;
        chown_unprivileged(&[&folder, &settings, &users])?;
        let program = env.programs.find("pgbouncer")?;
        let server = env.spawn(name, unprivileged(&program).arg(&settings).current_dir(&folder))?;
        server.wait_until("listened", || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        env.export(variable, url(port));
    }
    Ok(())
}

pub(super) fn start_redis(env: &mut Environment) -> Result<()> {
    let [plain, secure] = free_ports()?;
    node(env, "redis", plain, &[])?;
    env.export("LEASEHOLD_TEST_REDIS", format!("redis://127.0.0.1:{plain}"));

    let mut command = redis_server(env, "redis-tls")?;
    command.args(["--port", "0", "--tls-port", &secure.to_string(), "--tls-auth-clients", "no"]);
    command.arg("--tls-cert-file").arg(&env.tls.certificate).arg("--tls-key-file").arg(&env.tls.key);
    command.arg("--tls-ca-cert-file").arg(&env.tls.authority);
    let server = env.spawn("redis-tls", &mut command)?;
    server.wait_until("listened", || TcpStream::connect(("127.0.0.1", secure)).is_ok())?;
    env.export("LEASEHOLD_TEST_REDIS_TLS", format!("rediss://localhost:{secure}"));

    let program = env.programs.find("redis-server")?;
    env.export("LEASEHOLD_TEST_REDIS_BIN", program.display().to_string());
    Ok(())
}

/// Starts a Redis without TLS, with these settings, and waits until it responds.
fn node(env: &mut Environment, name: &str, port: u16, settings: &[&str]) -> Result<Server> {
    let mut command = redis_server(env, name)?;
    command.args(["--port", &port.to_string()]).args(settings);
    let server = env.spawn(name, &mut command)?;
    server.wait_until("answered", || send(port, "PING").is_ok())?;
    Ok(server)
}

/// Returns the command of a persistent Redis without eviction: when memory is full, it rejects writes
/// and never drops a lock.
fn redis_server(env: &Environment, name: &str) -> Result<Command> {
    let folder = env.folder(name)?;
    let mut command = Command::new(env.programs.find("redis-server")?);
    command.current_dir(&folder).arg("--dir").arg(&folder).args(["--bind", "127.0.0.1"]);
    // A slow disk stops a server that waits for its syncs, and with it every test.
    let fsync = if env.durable { "everysec" } else { "no" };
    command.args(["--save", "", "--appendonly", "yes", "--appendfsync", fsync]);
    // A benchmark enqueues a million tasks.
    let max_memory = if env.durable { "1gb" } else { "256mb" };
    command.args(["--maxmemory", max_memory, "--maxmemory-policy", "noeviction"]);
    Ok(command)
}

/// Sends a command and returns the reply without its framing.
fn send(port: u16, line: &str) -> Result<String> {
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

/// Starts a Redis Cluster of three nodes with a third of the slots each.
pub(super) fn start_cluster(env: &mut Environment) -> Result<()> {
    let ports: [u16; 3] = free_ports()?;
    let buses: [u16; 3] = free_ports()?;
    let mut servers = Vec::new();
    for (number, (port, bus)) in ports.into_iter().zip(buses).enumerate() {
        let bus = bus.to_string();
        let settings = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "2000"];
        servers.push(node(env, &format!("redis-cluster-{}", number + 1), port, &settings)?);
    }
    for (number, (port, slots)) in ports.into_iter().zip(SLOTS).enumerate() {
        send(port, &format!("CLUSTER ADDSLOTSRANGE {slots}"))?;
        // Set explicitly: nodes that must agree on it first take longer to start.
        send(port, &format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1))?;
    }
    for (port, bus) in ports.into_iter().zip(buses).skip(1) {
        send(ports[0], &format!("CLUSTER MEET 127.0.0.1 {port} {bus}"))?;
    }
    for (server, port) in servers.iter().zip(ports) {
        server.wait_until("joined its cluster", || {
            let info = send(port, "CLUSTER INFO").unwrap_or_default();
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
        })?;
    }
    let [first, second, third] = ports;
    env.export(
        "LEASEHOLD_TEST_REDIS_CLUSTER",
        format!("redis+cluster://127.0.0.1:{first}?nodes=127.0.0.1:{second},127.0.0.1:{third}"),
    );
    Ok(())
}

/// Starts Redis with one replica, and one Sentinel that decides when the replica takes over.
pub(super) fn start_sentinel(env: &mut Environment) -> Result<()> {
    let [master, replica, port] = free_ports()?;
    let master_address = format!("127.0.0.1 {master}");
    // The master waits neither for more replicas before a sync, nor for its replica at shutdown.
    let no_delays = ["--repl-diskless-sync-delay", "0", "--shutdown-timeout", "0"];
    let server = node(env, "redis-master", master, &no_delays)?;
    // With an append-only file, the replica would finish writing it before it stops.
    node(env, "redis-replica", replica, &["--replicaof", &master_address, "--appendonly", "no"])?;
    server.wait_until("got its replica", || {
        send(master, "INFO replication").is_ok_and(|info| info.contains("state=online"))
    })?;

    let folder = env.folder("redis-sentinel")?;
    // Sentinel writes its state into its configuration file.
    let settings = folder.join("sentinel.conf");
    fs::write(
        &settings,
        format!(
            "port {port}\n\
             bind 127.0.0.1\n\
             dir {}\n\
             sentinel monitor {SERVICE} 127.0.0.1 {master} 1\n\
             sentinel down-after-milliseconds {SERVICE} 1000\n\
             sentinel failover-timeout {SERVICE} 5000\n",
            folder.display()
        ),
    )?;
    let mut command = Command::new(env.programs.find("redis-server")?);
    command.arg(&settings).arg("--sentinel").current_dir(&folder);
    let server = env.spawn("redis-sentinel", &mut command)?;
    server.wait_until("found the replica", || {
        send(port, "INFO sentinel").is_ok_and(|info| info.contains("status=ok") && info.contains("slaves=1"))
    })?;
    env.export("LEASEHOLD_TEST_REDIS_SENTINEL", format!("redis+sentinel://127.0.0.1:{port}/{SERVICE}"));
    Ok(())
}

/// Starts the emulator of DynamoDB, in memory.
pub(super) fn start_dynamodb(env: &mut Environment) -> Result<()> {
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

/// Starts etcd with one member, which syncs to disk.
pub(super) fn start_etcd(env: &mut Environment) -> Result<()> {
    let [clients, peers] = free_ports()?.map(|port| format!("127.0.0.1:{port}"));
    let folder = env.folder("etcd")?;
    let mut command = Command::new(env.programs.find("etcd")?);
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
