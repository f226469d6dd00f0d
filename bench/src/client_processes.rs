//! Clients in several processes: this program starts itself, and all processes begin at the same time.

use anyhow::{Context, Result};

use crate::child::{ChildProcess, read_after_ready};
use crate::load::Load;
use crate::measure::{Measurements, Window, from_steps, steps};

/// Runs a client process: prints `ready`, reads its window, prints its measurements.
pub(crate) fn serve(load: &Load) -> Result<()> {
    let window = || serde_json::from_str(&read_after_ready()?).context("the window cannot be read");
    let Measurements { cycles, shares, turns } = load.run(window)?;
    println!("{}", serde_json::to_string(&(steps(&cycles), shares, turns))?);
    Ok(())
}

/// Runs a load in several processes.
pub(crate) fn run(load: &Load, processes: u32, window: impl FnOnce() -> Window) -> Result<Measurements> {
    let each = u32::try_from(load.clients.len())? / processes;
    let start = |number: u32| {
        let clients = number * each..(number + 1) * each;
        ChildProcess::start("client-process", &Load { clients, ..load.clone() })
    };
    let mut started = (0..processes).map(start).collect::<Result<Vec<_>>>()?;
    for process in &mut started {
        process.wait_until_ready()?;
    }
    let window = serde_json::to_string(&window())?;
    for process in &mut started {
        process.send(&window)?;
    }
    Measurements::sum(started.iter_mut().map(|process| {
        let line = process.read_line()?;
        let (cycles, shares, turns) =
            serde_json::from_str(&line).context("a client process printed no result")?;
        Ok(Measurements { cycles: from_steps(cycles)?, shares, turns })
    }))
}
