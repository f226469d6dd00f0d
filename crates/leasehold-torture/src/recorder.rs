//! Writes the records of a worker process to its standard output, each at once: what a process has
//! done before it is killed is in the history.

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::BootInstant;

use crate::history::{Event, Record};

/// Recorder of one process.
pub(crate) struct Recorder {
    process: u32,
    next_op: AtomicU32,
    output: Mutex<std::io::Stdout>,
}

impl Recorder {
    pub(crate) fn new(process: u32) -> Self {
        Self { process, next_op: AtomicU32::new(1), output: Mutex::new(std::io::stdout()) }
    }

    /// Returns the number of a new operation.
    pub(crate) fn op(&self) -> u32 {
        self.next_op.fetch_add(1, Ordering::Relaxed)
    }

    /// Records an event at the present time. The process ends if the coordinator is gone.
    pub(crate) fn record(&self, event: Event) {
        let mut output = self.output.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let record = Record { at: BootInstant::now().as_micros(), process: self.process, event };
        let mut line = serde_json::to_vec(&record).unwrap_or_default();
        line.push(b'\n');
        if output.write_all(&line).and_then(|()| output.flush()).is_err() {
            std::process::exit(1);
        }
    }
}
