//! Duration of a command under a lock: `leasehold run` compared with `flock` and with the command alone.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::measure::{float, now};
use crate::report::median;

/// Command and its median duration from start to end, in milliseconds.
pub(crate) struct CommandTime {
    pub(crate) command: &'static str,
    pub(crate) millis: f64,
    pub(crate) of_flock: f64,
}

const NAMES: [&str; 3] = ["true", "flock FILE true", "leasehold run LOCK -- true"];
const FLOCK: usize = 1;

/// Starts the commands in turn, each `starts` times.
pub(crate) fn measure(leasehold: Option<&PathBuf>, starts: u32, folder: &Path) -> Result<Vec<CommandTime>> {
    let folder = tempfile::tempdir_in(folder)?;
    let leasehold = leasehold.cloned().map_or_else(default_binary, Ok)?;
    let commands = commands(leasehold, folder.path());
    for command in &commands {
        time(command)?; // The first start creates files and fills caches.
    }
    let mut times = [const { Vec::new() }; NAMES.len()];
    for start in 0..starts as usize {
        for turn in 0..commands.len() {
            let at = (start + turn) % commands.len();
            times[at].push(time(&commands[at])?);
        }
    }
    let medians = times.map(|times| median(times).unwrap_or(f64::NAN));
    let started = |(command, millis)| CommandTime { command, millis, of_flock: millis / medians[FLOCK] };
    Ok(NAMES.into_iter().zip(medians).map(started).collect())
}

fn commands(leasehold: PathBuf, folder: &Path) -> [Vec<OsString>; NAMES.len()] {
    let mut store = OsString::from("sqlite:");
    store.push(folder.join("run.db"));
    let run = ["run", "bench", "--", "true"].map(OsString::from);
    let locked = [leasehold.into(), "--store".into(), store].into_iter().chain(run).collect();
    let flock = vec!["flock".into(), folder.join("flock").into(), "true".into()];
    [vec!["true".into()], flock, locked]
}

/// Returns the binary of the same build.
fn default_binary() -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("leasehold");
    ensure!(
        program.is_file(),
        "{} does not exist: run cargo build --release -p leasehold-cli",
        program.display()
    );
    Ok(program)
}

/// Runs a command; returns its duration in milliseconds.
fn time(arguments: &[OsString]) -> Result<f64> {
    let mut command = Command::new(&arguments[0]);
    command.args(&arguments[1..]).stdin(Stdio::null()).stdout(Stdio::null());
    let begun = now();
    let status = command.status().with_context(|| format!("cannot start {}", arguments[0].display()))?;
    let ended = now();
    ensure!(status.success(), "{} ended with {status}", arguments[0].display());
    Ok(float(ended - begun) / 1e6)
}
