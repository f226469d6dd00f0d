//! Redis server of one test, which can be configured, killed, restarted and promoted.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::engines::support::engine_at;
use crate::support::eventually;

/// Server that is stopped when dropped.
pub(super) struct Server {
    program: String,
    folder: tempfile::TempDir,
    port: u16,
    settings: Vec<String>,
    environment: Vec<(String, OsString)>,
    process: Child,
}

impl Server {
    /// Starts a server with these lines of its configuration file.
    pub(super) fn start(settings: &[&str]) -> Self {
        Self::start_in(settings, |_| Vec::new())
    }

    /// Starts a server with the environment that is made for its folder.
    pub(super) fn start_in(
        settings: &[&str],
        environment: impl FnOnce(&Path) -> Vec<(String, OsString)>,
    ) -> Self {
        let (program, folder) = (engine_at("redis-bin"), tempfile::tempdir().unwrap());
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings: Vec<_> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let environment = environment(folder.path());
        let process = spawn(&program, port, folder.path(), &settings, &environment);
        let server = Self { program, folder, port, settings, environment, process };
        server.wait_until_ready();
        server
    }

    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    /// Sends a command and returns its response; arrays and their strings as lines.
    #[track_caller]
    pub(super) fn command(&self, command: &str) -> String {
        self.try_command(command).unwrap_or_else(|error| panic!("'{command}' fails: {error}"))
    }

    fn try_command(&self, command: &str) -> std::io::Result<String> {
        let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", self.port))?);
        stream.get_ref().set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        read_response(&mut stream)
    }

    fn wait_until_ready(&self) {
        eventually("the server answers", || self.try_command("PING").is_ok());
    }

    /// Returns a field of `INFO`.
    pub(super) fn info(&self, field: &str) -> String {
        let info = self.command("INFO");
        let found = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.unwrap_or_else(|| panic!("no {field} in {info}")).trim().to_owned()
    }

    /// Kills the server.
    pub(super) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts the killed server again with its files.
    pub(super) fn up(&mut self) {
        let Self { program, port, folder, settings, environment, .. } = self;
        self.process = spawn(program, *port, folder.path(), settings, environment);
        self.wait_until_ready();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = (self.process.kill(), self.process.wait());
    }
}

fn spawn(
    program: &str,
    port: u16,
    folder: &Path,
    settings: &[String],
    environment: &[(String, OsString)],
) -> Child {
    let mut lines = format!("bind 127.0.0.1\nport {port}\ndir {}\nsave \"\"\n", folder.display());
    for setting in settings {
        lines.extend([setting, "\n"]);
    }
    let file = folder.join("redis.conf");
    std::fs::write(&file, lines).unwrap();
    let mut command = Command::new(program);
    command.arg(&file).envs(environment.iter().cloned()).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn read_response(stream: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let (kind, rest) = line.trim_end().split_at(1);
    match kind {
        "-" => Err(std::io::Error::other(rest.to_owned())),
        "$" => {
            let mut text = vec![0; rest.parse::<usize>().unwrap_or(0) + 2];
            stream.read_exact(&mut text)?;
            Ok(String::from_utf8_lossy(&text).trim_end().to_owned())
        }
        "*" => {
            let parts: std::io::Result<Vec<_>> =
                (0..rest.parse::<usize>().unwrap_or(0)).map(|_| read_response(stream)).collect();
            Ok(parts?.join("\n"))
        }
        _ => Ok(rest.to_owned()),
    }
}
