//! Server of one test, which can be restarted.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::engines::support::engine_at;

/// User that runs the server if the tests run as root, which PostgreSQL refuses.
const NOBODY: u32 = 65534;

/// Server that is stopped when dropped.
pub(super) struct Server {
    bin: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
    process: Option<Child>,
}

impl Server {
    pub(super) async fn start() -> Self {
        let bin = PathBuf::from(engine_at("postgres-bin"));
        let folder = tempfile::tempdir().unwrap();
        if is_root() {
            std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let data = folder.path().join("data");
        let mut initdb = program(&bin.join("initdb"), folder.path());
        initdb.args(["--username=leasehold", "--auth=trust", "--encoding=UTF8", "--no-sync", "--pgdata"]);
        assert!(initdb.arg(&data).stdout(Stdio::null()).status().unwrap().success());
        let mut server = Self { bin, folder, port, process: None };
        server.up().await;
        server
    }

    pub(super) fn url(&self) -> String {
        format!("postgres://leasehold@127.0.0.1:{}/postgres", self.port)
    }

    /// Starts the server and waits until it answers.
    pub(super) async fn up(&mut self) {
        loop {
            let mut postgres = program(&self.bin.join("postgres"), self.folder.path());
            postgres.arg("-D").arg(self.folder.path().join("data")).arg("-k").arg(self.folder.path());
            postgres.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-c", "fsync=off"]);
            let process = self.process.insert(postgres.stderr(Stdio::null()).spawn().unwrap());
            // A new server refuses to start until all children of a killed one have exited.
            while process.try_wait().unwrap().is_none() {
                let url = format!("postgres://leasehold@127.0.0.1:{}/postgres", self.port);
                if tokio_postgres::connect(&url, tokio_postgres::NoTls).await.is_ok() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Kills the server, like a crash.
    pub(super) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // The children exit when they notice that the parent is dead.
            process.kill().unwrap();
            process.wait().unwrap();
            let _ = std::fs::remove_file(self.folder.path().join("data/postmaster.pid"));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|this| std::os::unix::fs::MetadataExt::uid(&this) == 0)
}

fn program(path: &Path, folder: &Path) -> Command {
    let mut program = Command::new(path);
    program.current_dir(folder).stdin(Stdio::null());
    if is_root() {
        program.uid(NOBODY).gid(NOBODY);
    }
    program
}
