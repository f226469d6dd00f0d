//! Taking and giving back over a few connections: two requests a cycle, on either server.

use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;

use super::line::Line;
use crate::measure::now;
use crate::stats::float;

/// What a server did.
#[derive(Debug, Clone)]
pub(super) struct Cycles {
    pub(super) per_second: f64,
    pub(super) times: Histogram<u64>,
}

/// Lets so many connections work for so long.
pub(super) async fn measure(address: &str, connections: u32, time: Duration) -> Result<Cycles> {
    let begun = now();
    let until = begun + u64::try_from(time.as_nanos())?;
    let mut clients = Vec::new();
    for number in 0..connections {
        let line = Line::open(address).await?;
        clients.push(tokio::spawn(client(line, format!("bench-{number}"), until)));
    }
    let mut times = Histogram::new(3)?;
    for client in clients {
        times.add(client.await??)?;
    }
    let seconds = float(now() - begun) / 1e9;
    Ok(Cycles { per_second: float(times.len()) / seconds, times })
}

async fn client(mut line: Line, lock: String, until: u64) -> Result<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    let mut begun = now();
    while begun < until {
        let lease = line.acquire(&lock, 0).await?;
        line.release(&lock, lease).await?;
        let ended = now();
        times.record(ended - begun)?;
        begun = ended;
    }
    Ok(times)
}
