//! Clients spread over several processes: this program starts itself, and all begin at the same moment.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::cli::WorkerArgs;
use crate::load::Load;
use crate::measure::{Notes, Turn, Window};

const READY: &str = "ready";

/// The side of a worker: says that it is ready, reads its window, writes what it noted.
pub(crate) fn serve(args: &WorkerArgs) -> Result<()> {
    let load = Load {
        engine: args.engine,
        floor: args.floor,
        keys: args.keys,
        clients: args.first..args.first + args.clients,
        hold_millis: args.hold_millis,
        folder: args.folder.clone(),
    };
    let window = || {
        println!("{READY}");
        let mut line = String::new();
        // If whoever started us is gone, there is no window: this ends here.
        std::io::stdin().lock().read_line(&mut line)?;
        serde_json::from_str(&line).context("no window came")
    };
    let notes = load.run(window)?;
    println!("{}", serde_json::to_string(&Written::from(&notes))?);
    Ok(())
}

/// Spreads a load over so many processes.
pub(crate) fn run(load: &Load, processes: u32, window: impl FnOnce() -> Window) -> Result<Notes> {
    let each = u32::try_from(load.clients.len())? / processes;
    let mut workers = (0..processes)
        .map(|number| Worker::start(load, number * each..(number + 1) * each))
        .collect::<Result<Vec<_>>>()?;
    for worker in &mut workers {
        ensure!(worker.read_line()?.trim() == READY, "a worker could not begin");
    }
    let window = serde_json::to_string(&window())?;
    for worker in &mut workers {
        worker.send(&window)?;
    }
    let mut all = Notes::new()?;
    for mut worker in workers {
        let line = worker.read_line()?;
        let written: Written = serde_json::from_str(&line).context("a worker did not end well")?;
        all.add(&written.read()?)?;
    }
    Ok(all)
}

/// A running worker. It ends with this value, whatever it is doing.
struct Worker {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(load: &Load, clients: Range<u32>) -> Result<Self> {
        let mut child = Command::new(this_program()?)
            .args(["worker", "--engine", &word(&load.engine), "--floor", &word(&load.floor)])
            .args(["--keys", &word(&load.keys), "--first", &clients.start.to_string()])
            .args(["--clients", &clients.len().to_string()])
            .args(["--hold-millis", &load.hold_millis.to_string(), "--folder"])
            .arg(&load.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("a worker cannot be started")?;
        let output = BufReader::new(child.stdout.take().expect("it was started with a pipe"));
        Ok(Self { child, output })
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }

    fn send(&mut self, line: &str) -> Result<()> {
        let mut input = self.child.stdin.take().expect("it was started with a pipe");
        Ok(writeln!(input, "{line}")?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This very program, even if it has been built anew since it was started.
pub(crate) fn this_program() -> Result<PathBuf> {
    if cfg!(target_os = "linux") {
        return Ok(PathBuf::from("/proc/self/exe"));
    }
    std::env::current_exe().context("where is this program?")
}

pub(crate) fn word(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Notes as they go from a worker to the one that started it.
#[derive(Serialize, Deserialize)]
struct Written {
    /// How long, and how often.
    cycles: Vec<(u64, u64)>,
    shares: BTreeMap<u32, u64>,
    turns: Vec<Turn>,
}

impl From<&Notes> for Written {
    fn from(notes: &Notes) -> Self {
        let cycles = notes.cycles.iter_recorded();
        let cycles = cycles.map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
        Self { cycles, shares: notes.shares.clone(), turns: notes.turns.clone() }
    }
}

impl Written {
    fn read(self) -> Result<Notes> {
        let mut notes = Notes::new()?;
        for (value, count) in self.cycles {
            notes.cycles.record_n(value, count)?;
        }
        Ok(Notes { shares: self.shares, turns: self.turns, ..notes })
    }
}
