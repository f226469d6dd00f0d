//! Acquire and release over a few connections: two requests per cycle.

use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;

use super::connection::Connection;
use crate::measure::now;
use crate::stats::float;

/// Result of one server.
#[derive(Debug, Clone)]
pub(super) struct Cycles {
    pub(super) per_second: f64,
    pub(super) times: Histogram<u64>,
}

/// Runs cycles on several connections for this time.
pub(super) async fn measure(address: &str, connections: u32, time: Duration) -> Result<Cycles> {
    let begun = now();
    let until = begun + u64::try_from(time.as_nanos())?;
    let mut clients = Vec::new();
    for number in 0..connections {
        let connection = Connection::open(address).await?;
        clients.push(tokio::spawn(client(connection, format!("bench-{number}"), until)));
    }
    let mut times = Histogram::new(3)?;
    for client in clients {
        times.add(client.await??)?;
    }
    let seconds = float(now() - begun) / 1e9;
    Ok(Cycles { per_second: float(times.len()) / seconds, times })
}

async fn client(mut connection: Connection, lock: String, until: u64) -> Result<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    let mut begun = now();
    while begun < until {
        let lease = connection.acquire(&lock, 0).await?;
        connection.release(&lock, lease).await?;
        let ended = now();
        times.record(ended - begun)?;
        begun = ended;
    }
    Ok(times)
}
