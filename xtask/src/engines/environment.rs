//! Environment in which engines are started: a folder, free ports, certificates, a log for each, and a
//! start timeout.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use super::fetch::last_lines;
use super::programs::Programs;
use super::state::{Process, State};

/// Time after which an engine that does not respond has failed.
const START_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Environment {
    pub(super) state: State,
    pub(super) programs: Programs,
    pub(super) tls: Tls,
    /// Whether PostgreSQL syncs to disk, which benchmarks need.
    pub(super) durable: bool,
}

pub(super) struct Server {
    name: String,
    process: Process,
    log: PathBuf,
}

impl Environment {
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.state.folder.join(name);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(folder)
    }

    /// Starts an engine in the background. Its process is saved at once, so that it can be stopped
    /// whatever happens next.
    pub(super) fn spawn(&mut self, name: &str, command: &mut Command) -> Result<Server> {
        let log = self.state.folder.join(format!("{name}.log"));
        let output = File::create(&log)?;
        // A separate process group, so that Ctrl-C in the terminal does not reach it.
        command.process_group(0).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let process = Process::of(child.id())?;
        self.state.processes.push((name.to_owned(), process));
        self.state.save()?;
        Ok(Server { name: name.to_owned(), process, log })
    }

    pub(super) fn export(&mut self, name: &str, value: impl Into<String>) {
        self.state.exports.push((name.to_owned(), value.into()));
    }
}

impl Server {
    /// Waits until the condition holds; `what` names it in the error.
    pub(super) fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        while !condition() {
            let problem = if !self.process.is_running() {
                format!("ended before it {what}")
            } else if start.elapsed() > START_TIMEOUT {
                format!("has not {what} within {} s", START_TIMEOUT.as_secs())
            } else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            let log = fs::read(&self.log).unwrap_or_default();
            let log = last_lines(&String::from_utf8_lossy(&log));
            bail!("{} {problem}; end of its log:\n{log}", self.name);
        }
        Ok(())
    }
}

pub(super) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut ports = [0; N];
    let mut listeners = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("there is no free port on 127.0.0.1")?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}

/// Certificates of the engines: a CA, a server certificate that it has signed, and another CA.
pub(super) struct Tls {
    pub(super) authority: PathBuf,
    pub(super) other_authority: PathBuf,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

impl Tls {
    pub(super) fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let [authority, other_authority, certificate, key] =
            ["ca.pem", "other-ca.pem", "server.pem", "server.key"].map(|name| folder.join(name));
        let issuer = create_authority("leasehold tests", &authority)?;
        create_authority("leasehold tests, the other", &other_authority)?;
        let server_key = KeyPair::generate()?;
        let mut server = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        server.distinguished_name.push(DnType::CommonName, "localhost");
        server.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        fs::write(&certificate, server.signed_by(&server_key, &issuer)?.pem())?;
        fs::write(&key, server_key.serialize_pem())?;
        Ok(Self { authority, other_authority, certificate, key })
    }
}

fn create_authority(name: &str, file: &Path) -> Result<Issuer<'static, KeyPair>> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(file, params.self_signed(&key)?.pem())?;
    Ok(Issuer::new(params, key))
}
