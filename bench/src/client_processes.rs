//! Clients in several processes: this program starts itself, and all processes begin at the same time.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::cli::ClientProcessArgs;
use crate::load::Load;
use crate::measure::{Measurements, Turn, Window};

const READY: &str = "ready";

/// Runs a client process: prints `ready`, reads its window, prints its measurements.
pub(crate) fn serve(args: &ClientProcessArgs) -> Result<()> {
    let load = Load {
        engine: args.engine,
        layer: args.layer,
        keys: args.keys,
        clients: args.first..args.first + args.clients,
        hold_millis: args.hold_millis,
        folder: args.folder.clone(),
    };
    let window = || {
        println!("{READY}");
        let mut line = String::new();
        // End of input means that the parent process has exited; parsing then fails.
        std::io::stdin().lock().read_line(&mut line)?;
        serde_json::from_str(&line).context("the window cannot be read")
    };
    let measurements = load.run(window)?;
    println!("{}", serde_json::to_string(&MeasurementsJson::from(&measurements))?);
    Ok(())
}

/// Runs a load in several processes.
pub(crate) fn run(load: &Load, processes: u32, window: impl FnOnce() -> Window) -> Result<Measurements> {
    let each = u32::try_from(load.clients.len())? / processes;
    let mut started = (0..processes)
        .map(|number| ClientProcess::start(load, number * each..(number + 1) * each))
        .collect::<Result<Vec<_>>>()?;
    for process in &mut started {
        ensure!(process.read_line()?.trim() == READY, "a client process is not ready");
    }
    let window = serde_json::to_string(&window())?;
    for process in &mut started {
        process.send(&window)?;
    }
    let mut all = Measurements::new()?;
    for mut process in started {
        let line = process.read_line()?;
        let json: MeasurementsJson =
            serde_json::from_str(&line).context("a client process printed no result")?;
        all.add(&json.read()?)?;
    }
    Ok(all)
}

/// Running client process. It is killed when this value is dropped.
struct ClientProcess {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl ClientProcess {
    fn start(load: &Load, clients: Range<u32>) -> Result<Self> {
        let mut child = Command::new(this_program()?)
            .args(["client-process", "--engine", &arg_name(&load.engine), "--layer", &arg_name(&load.layer)])
            .args(["--keys", &arg_name(&load.keys), "--first", &clients.start.to_string()])
            .args(["--clients", &clients.len().to_string()])
            .args(["--hold-millis", &load.hold_millis.to_string(), "--folder"])
            .arg(&load.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("a client process cannot be started")?;
        let output = BufReader::new(child.stdout.take().expect("the process was started with pipes"));
        Ok(Self { child, output })
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }

    fn send(&mut self, line: &str) -> Result<()> {
        let mut input = self.child.stdin.take().expect("the process was started with pipes");
        Ok(writeln!(input, "{line}")?)
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of this program, even if it was rebuilt since it was started.
pub(crate) fn this_program() -> Result<PathBuf> {
    if cfg!(target_os = "linux") {
        return Ok(PathBuf::from("/proc/self/exe"));
    }
    std::env::current_exe().context("the path of this program is unknown")
}

/// Returns the command-line name of a value.
pub(crate) fn arg_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Measurements as a client process sends them to its parent.
#[derive(Serialize, Deserialize)]
struct MeasurementsJson {
    /// Durations and their counts.
    cycles: Vec<(u64, u64)>,
    shares: BTreeMap<u32, u64>,
    turns: Vec<Turn>,
}

impl From<&Measurements> for MeasurementsJson {
    fn from(measurements: &Measurements) -> Self {
        let cycles = measurements.cycles.iter_recorded();
        let cycles = cycles.map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
        Self { cycles, shares: measurements.shares.clone(), turns: measurements.turns.clone() }
    }
}

impl MeasurementsJson {
    fn read(self) -> Result<Measurements> {
        let mut measurements = Measurements::new()?;
        for (value, count) in self.cycles {
            measurements.cycles.record_n(value, count)?;
        }
        Ok(Measurements { shares: self.shares, turns: self.turns, ..measurements })
    }
}
