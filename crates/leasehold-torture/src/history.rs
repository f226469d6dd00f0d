//! Recorded history of a run: a header, then one record per line, as JSON; how it is read and written, and
//! the recorder of a worker process.

use std::io::{self, BufRead, Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::BootInstant;
use serde::{Deserialize, Serialize};

/// Version of the format of a recorded history.
pub const FORMAT: u32 = 1;

/// Maximum length of a line of a recorded history, in bytes.
const MAX_LINE: u64 = 64 * 1024;

/// Recorded history of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// What was run.
    pub header: Header,
    /// Records of all processes, by time.
    pub records: Vec<Record>,
}

/// What was run: the first line of a recorded history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Version of the format: [`FORMAT`].
    pub format: u32,
    /// URL of the store, without secrets.
    pub store: String,
    /// Name of the engine.
    pub engine: String,
    /// Seed of all random choices.
    pub seed: u64,
    /// TTL of leases, in milliseconds.
    pub ttl_millis: u64,
    /// Number of worker processes that run at the same time.
    pub workers: u32,
    /// Whether the connections of workers can be disturbed.
    pub proxied: bool,
    /// Whether the engine grants a lock in the order of its queue.
    pub queues: bool,
    /// Whether the engine has tasks.
    pub tasks: bool,
}

/// One record: an event with its time and process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Time by the boot clock of the machine, which all processes share, in microseconds.
    pub at: u64,
    /// Number of the process; 0 is the coordinator.
    pub process: u32,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// How a lock is acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// One holder.
    Exclusive,
    /// Any number of holders, but none that is exclusive.
    Shared,
    /// At most this number of holders.
    Slots(u32),
}

/// Event of a process. `op` numbers the operations of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Event {
    /// A worker sends an acquire.
    Acquire {
        /// Number of the operation.
        op: u32,
        /// Name of the lock.
        lock: String,
        /// How the lock is acquired.
        mode: Mode,
    },
    /// The acquire of `op` waits, and its position in the queue is stored.
    Queued {
        /// Number of the operation.
        op: u32,
    },
    /// The worker has received the lease.
    Granted {
        /// Number of the operation.
        op: u32,
        /// Id of the lease.
        lease: String,
        /// Fencing token.
        token: u64,
        /// Time until which the worker believes to hold the lease.
        until: u64,
    },
    /// The lease of `op` was renewed.
    Extended {
        /// Number of the operation.
        op: u32,
        /// Time until which the worker believes to hold the lease.
        until: u64,
    },
    /// The lock was not acquired.
    Refused {
        /// Number of the operation.
        op: u32,
        /// Code of the error.
        code: String,
    },
    /// The worker believes to hold the lease no longer: it is about to release it, or its attempt
    /// has ended, or the lease is lost.
    Ended {
        /// Number of the operation.
        op: u32,
        /// Whether the worker has noticed that the lease is lost.
        lost: bool,
    },
    /// The response to the release of `op` has arrived; `code` is that of the error.
    Released {
        /// Number of the operation.
        op: u32,
        /// Code of the error.
        code: Option<String>,
    },
    /// A worker is about to take the lock by force from the lease with this token.
    Force {
        /// Number of the operation.
        op: u32,
        /// Name of the lock.
        lock: String,
        /// Token of the lease that is ended.
        token: u64,
    },
    /// A worker adds a task.
    Enqueue {
        /// Number of the operation.
        op: u32,
        /// Queue of the task, or `workflow:` and the name of a workflow.
        queue: String,
        /// Key of the task.
        key: Option<String>,
    },
    /// The store has acknowledged the task of `op`.
    Enqueued {
        /// Number of the operation.
        op: u32,
        /// Id of the task.
        task: String,
        /// Whether the key already belonged to the task.
        duplicate: bool,
    },
    /// A worker begins an attempt at a task. It ends with [`Event::Ended`].
    Attempt {
        /// Number of the operation.
        op: u32,
        /// Id of the task.
        task: String,
        /// Name of the lock that the worker holds during the attempt.
        lock: Option<String>,
        /// Fencing token of the task.
        token: u64,
        /// Time until which the worker believes to hold the task.
        until: u64,
    },
    /// The process was not scheduled for this time: its timers and renewals were late.
    Stalled {
        /// Duration in milliseconds.
        millis: u64,
    },
    /// The process starts nothing new, and has received the responses of all it has started.
    Drained,
    /// The coordinator has started a process.
    Started {
        /// Number of the started process.
        worker: u32,
    },
    /// The coordinator is about to inject a fault into a process or its connections.
    Fault {
        /// Number of the affected process.
        worker: u32,
        /// Name of the fault.
        fault: String,
        /// Duration in milliseconds.
        millis: u64,
    },
    /// The engine was disturbed, from the time of the record on.
    EngineFault {
        /// Name of the fault.
        fault: String,
        /// Duration in milliseconds.
        millis: u64,
        /// Whether the engine may have lost what it had acknowledged before the end of the fault.
        loses: bool,
        /// Whether it may have lost some keys of an operation and kept others.
        #[serde(default)]
        loses_parts: bool,
    },
    /// The sink has answered a read, or a write of `value` by a worker that had read `seen`.
    Sink {
        /// Number of the process that called the sink.
        worker: u32,
        /// Number of the operation that holds the lock.
        op: u32,
        /// Name of the lock.
        lock: String,
        /// Fencing token that was presented.
        token: u64,
        /// Value that was read before, for a write.
        seen: Option<u64>,
        /// Value that was read or written.
        value: u64,
        /// Whether the fence has admitted the token.
        accepted: bool,
    },
    /// The coordinator injects no further faults, and waits for the end of all tasks.
    Draining,
    /// The user has ended the run before its time. Draining follows.
    Interrupted,
    /// The coordinator has recorded the end of every task: the history is complete.
    Complete,
    /// Tick of a schedule that all workers run, at the end of the run.
    Tick {
        /// Name of the schedule.
        schedule: String,
        /// Time of the tick, as in the key of its task.
        tick: String,
        /// Id of a task of this tick; `None` if the tick is over and the store has no task of it.
        task: Option<String>,
    },
    /// State of a task at the end of the run.
    Final {
        /// Id of the task.
        task: String,
        /// State of the task; `missing` if the store does not have it.
        state: String,
        /// Fencing token of the task.
        token: u64,
        /// Whether the state is terminal.
        terminal: bool,
    },
}

impl Event {
    /// Returns the number of the operation that the event belongs to.
    pub const fn op(&self) -> Option<u32> {
        match self {
            Self::Acquire { op, .. }
            | Self::Queued { op }
            | Self::Granted { op, .. }
            | Self::Extended { op, .. }
            | Self::Refused { op, .. }
            | Self::Ended { op, .. }
            | Self::Released { op, .. }
            | Self::Force { op, .. }
            | Self::Enqueue { op, .. }
            | Self::Enqueued { op, .. }
            | Self::Attempt { op, .. } => Some(*op),
            _ => None,
        }
    }
}

impl Record {
    /// Returns the process and the number of the operation that the record belongs to.
    pub const fn id(&self) -> Option<(u32, u32)> {
        match &self.event {
            Event::Sink { worker, op, .. } => Some((*worker, *op)),
            event => match event.op() {
                Some(op) => Some((self.process, op)),
                None => None,
            },
        }
    }
}

impl History {
    /// Reads a history from the lines of a file.
    pub fn read(input: impl BufRead) -> io::Result<Self> {
        let mut reader = Reader::new(input)?;
        let records = reader.by_ref().collect::<io::Result<_>>()?;
        Ok(Self::new(reader.header, records))
    }

    /// Creates a history; sorts the records by time.
    pub fn new(header: Header, mut records: Vec<Record>) -> Self {
        records.sort_by_key(|record| record.at);
        Self { header, records }
    }

    /// Writes the history.
    pub fn write(&self, mut output: impl Write) -> io::Result<()> {
        write_line(&mut output, &self.header)?;
        self.records.iter().try_for_each(|record| write_line(&mut output, record))?;
        output.flush()
    }
}

/// Writes a header or a record.
pub(crate) fn write_line(output: &mut (impl Write + ?Sized), line: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(line)?;
    line.push(b'\n');
    output.write_all(&line)
}

/// Reads the records of a file one by one, in the order of the file.
#[derive(Debug)]
pub struct Reader<I> {
    /// What was run.
    pub header: Header,
    input: I,
    /// Number of lines that were read.
    lines: u64,
}

impl<I: BufRead> Reader<I> {
    /// Reads the header.
    pub fn new(mut input: I) -> io::Result<Self> {
        let first = read_line(&mut input, 1)?.unwrap_or_default();
        let header: Header = serde_json::from_slice(&first)
            .map_err(|error| invalid(format!("line 1 is no header of a history: {error}")))?;
        if header.format != FORMAT {
            return Err(invalid(format!(
                "the history has format {}, and this program reads format {FORMAT}",
                header.format
            )));
        }
        Ok(Self { header, input, lines: 1 })
    }
}

impl<I: BufRead> Iterator for Reader<I> {
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<io::Result<Record>> {
        self.lines += 1;
        let line = read_line(&mut self.input, self.lines).transpose()?;
        Some(line.and_then(|line| {
            serde_json::from_slice(&line)
                .map_err(|error| invalid(format!("line {} is no record: {error}", self.lines)))
        }))
    }
}

/// Reads a line without its end; `None` at the end of the input.
fn read_line(input: &mut impl BufRead, number: u64) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    input.take(MAX_LINE).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => return Ok(None),
        Some(b'\n') => {}
        // The last line of a file may have no end.
        Some(byte) => line.push(byte),
    }
    if line.len() as u64 == MAX_LINE {
        return Err(invalid(format!("line {number} is longer than {MAX_LINE} bytes")));
    }
    Ok(Some(line))
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Recorder of one worker process. It writes each record to the standard output at once: what a process has
/// done before it is killed is in the history.
pub(crate) struct Recorder {
    process: u32,
    next_op: AtomicU32,
    output: Mutex<io::Stdout>,
}

impl Recorder {
    pub(crate) fn new(process: u32) -> Self {
        Self { process, next_op: AtomicU32::new(1), output: Mutex::new(io::stdout()) }
    }

    /// Returns the number of a new operation.
    pub(crate) fn op(&self) -> u32 {
        self.next_op.fetch_add(1, Ordering::Relaxed)
    }

    /// Records an event at the present time. The process ends if the coordinator has ended.
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
