//! PostgreSQL server of one test, which can be killed, restarted, replicated and promoted.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::engines::support::engine_at;
use crate::support::eventually;

/// User that runs the server if the tests run as root, which PostgreSQL refuses.
const NOBODY: u32 = 65534;

/// Server that is stopped when dropped.
pub(super) struct Server {
    bin: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
    settings: Vec<String>,
    environment: Vec<(String, OsString)>,
    process: Option<Child>,
}

impl Server {
    /// Starts a server with these settings (`name=value`).
    pub(super) fn start(settings: &[&str]) -> Self {
        Self::start_in(settings, |_| Vec::new())
    }

    /// Starts a server with the environment that is made for its folder.
    pub(super) fn start_in(
        settings: &[&str],
        environment: impl FnOnce(&Path) -> Vec<(String, OsString)>,
    ) -> Self {
        let mut server = Self::create(settings);
        let mut initdb = server.program("initdb");
        initdb.args(["--username=leasehold", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]);
        initdb.arg("--pgdata").arg(server.data());
        assert!(initdb.stdout(Stdio::null()).status().unwrap().success());
        server.environment = environment(server.folder.path());
        server.up();
        server
    }

    /// Starts a streaming replica that reaches this server at this port.
    pub(super) fn replica(&self, primary: u16) -> Self {
        let mut replica = Self::create(&[]);
        let mut backup = replica.program("pg_basebackup");
        backup.args(["--host=127.0.0.1", "--username=leasehold", "--write-recovery-conf", "--no-sync"]);
        backup.args(["--checkpoint=fast", "--port", &primary.to_string()]);
        assert!(backup.arg("--pgdata").arg(replica.data()).status().unwrap().success());
        replica.up();
        eventually("the replica streams", || self.sql("SELECT count(*) FROM pg_stat_replication") == "1");
        replica
    }

    fn create(settings: &[&str]) -> Self {
        let bin = PathBuf::from(engine_at("postgres-bin"));
        let folder = tempfile::tempdir().unwrap();
        if is_root() {
            std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        Self { bin, folder, port, settings, environment: Vec::new(), process: None }
    }

    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Starts the server and waits until it answers.
    pub(super) fn up(&mut self) {
        eventually("the server answers", || {
            // A new server refuses to start until all processes of a killed one have ended.
            if self.process.as_mut().is_none_or(|process| process.try_wait().unwrap().is_some()) {
                self.process = Some(self.spawn());
            }
            self.try_sql("SELECT 1").is_some()
        });
    }

    fn spawn(&self) -> Child {
        let mut postgres = self.program("postgres");
        postgres.arg("-D").arg(self.data()).arg("-k").arg(self.folder.path());
        postgres.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        // Without fsync a killed server loses nothing that it has written, as the machine lives on.
        let common = ["fsync=off", "dynamic_shared_memory_type=mmap", "shared_buffers=32MB", "jit=off"];
        for setting in common.into_iter().chain(self.settings.iter().map(String::as_str)) {
            postgres.args(["-c", setting]);
        }
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        postgres.envs(self.environment.iter().cloned());
        postgres.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn program(&self, name: &str) -> Command {
        let mut program = Command::new(self.bin.join(name));
        program.current_dir(self.folder.path()).stdin(Stdio::null());
        if is_root() {
            program.uid(NOBODY).gid(NOBODY);
        }
        program
    }

    /// Runs a statement and returns its rows.
    #[track_caller]
    pub(super) fn sql(&self, statement: &str) -> String {
        self.try_sql(statement).unwrap_or_else(|| panic!("'{statement}' fails"))
    }

    fn try_sql(&self, statement: &str) -> Option<String> {
        let mut psql = Command::new(self.bin.join("psql"));
        psql.args(["--no-psqlrc", "--tuples-only", "--no-align", "--quiet", "--set=ON_ERROR_STOP=1"]);
        psql.args(["--host=127.0.0.1", "--username=leasehold", "--port", &self.port.to_string()]);
        psql.args(["--dbname=postgres", "--command", statement]).env("PGCONNECT_TIMEOUT", "10");
        let output = psql.stdin(Stdio::null()).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }

    /// Returns what the server has logged since its start.
    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Kills all processes of the server.
    pub(super) fn kill(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let server = Pid::from_raw(i32::try_from(process.id()).unwrap());
        // Stopped first: it would restart a killed child.
        kill(server, Signal::SIGSTOP).unwrap();
        let children = std::fs::read_to_string(format!("/proc/{server}/task/{server}/children")).unwrap();
        for child in children.split_whitespace() {
            let _ = kill(Pid::from_raw(child.parse().unwrap()), Signal::SIGKILL);
        }
        process.kill().unwrap();
        process.wait().unwrap();
        let _ = std::fs::remove_file(self.data().join("postmaster.pid"));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        // Ends its sessions and its processes, and removes its shared memory.
        let _ = kill(Pid::from_raw(i32::try_from(process.id()).unwrap_or(i32::MAX)), Signal::SIGINT);
        for _ in 0..100 {
            if !matches!(process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = (process.kill(), process.wait());
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
