//! State of the machine before a round, for the interpretation of durable rows.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::measure::now;
use crate::stats::{float, median};

/// State of the machine before a round.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Probe {
    /// Median duration of a 4 KiB write and its fdatasync, in µs.
    pub(crate) fsync_micros: f64,
    /// Load average of the last minute.
    pub(crate) load: f64,
}

const WRITES: u32 = 100;

impl Probe {
    pub(crate) fn take(folder: &Path) -> Result<Self> {
        let mut file = tempfile::tempfile_in(folder)?;
        let block = [7; 4096];
        file.write_all(&block)?;
        file.sync_all()?;
        let micros = (0..WRITES).map(|_| write_and_sync(&mut file, &block)).collect::<Result<Vec<_>>>()?;
        Ok(Self { fsync_micros: median(&micros), load: load() })
    }
}

fn write_and_sync(file: &mut File, block: &[u8]) -> Result<f64> {
    let begun = now();
    file.seek(SeekFrom::Start(0))?;
    file.write_all(block)?;
    file.sync_data()?;
    Ok(float(now() - begun) / 1e3)
}

fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}
