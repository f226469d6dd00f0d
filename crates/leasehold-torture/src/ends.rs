//! Reads acknowledged tasks until they have ended, and records their ends.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::model::TaskId;
use leasehold::{BootInstant, Tasks};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::history::{Event, Record};
use crate::{Error, MISSING};

/// Period in which open tasks are read.
const PERIOD: Duration = Duration::from_millis(200);

/// Maximum number of tasks that are read in one period during the load.
const BATCH: usize = 100;

/// Task that reads the acknowledged tasks of a run. Ends when it is dropped.
pub(crate) struct Ends {
    acknowledged: mpsc::UnboundedSender<TaskId>,
    /// Number of tasks that were sent to it.
    sent: u64,
    state: watch::Receiver<State>,
    phase: watch::Sender<Phase>,
    reading: Option<JoinHandle<Result<(), Error>>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// Number of tasks that were received.
    received: u64,
    /// Number of tasks whose end is not known.
    open: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Load,
    Drain,
    /// The tasks that have not ended are recorded as they are.
    Over,
}

impl Ends {
    pub(crate) fn start(tasks: Tasks, records: mpsc::UnboundedSender<Record>) -> Self {
        let (acknowledged, receiver) = mpsc::unbounded_channel();
        let (sender, state) = watch::channel(State::default());
        let phase = watch::Sender::new(Phase::Load);
        let reader = Reader { tasks, records, receiver, state: sender, phase: phase.subscribe() };
        let reading = Some(tokio::spawn(reader.run()));
        Self { acknowledged, sent: 0, state, phase, reading }
    }

    /// Adds an acknowledged task.
    pub(crate) fn add(&mut self, id: TaskId) {
        // If the reader has failed, its error is found by `failed`.
        if self.acknowledged.send(id).is_ok() {
            self.sent += 1;
        }
    }

    /// Reads all tasks in each period from now on.
    pub(crate) fn drain(&self) {
        self.phase.send_replace(Phase::Drain);
    }

    /// Whether the end of each task is known.
    pub(crate) fn are_known(&self) -> bool {
        let State { received, open } = *self.state.borrow();
        received == self.sent && open == 0
    }

    /// Returns the number of tasks whose end is not known.
    pub(crate) fn open(&self) -> usize {
        self.state.borrow().open
    }

    /// Whether the store has returned an error that no retry removes.
    pub(crate) fn has_failed(&self) -> bool {
        self.reading.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Records the tasks that have not ended, and ends.
    pub(crate) async fn finish(&mut self) -> Result<(), Error> {
        self.phase.send_replace(Phase::Over);
        match self.reading.take() {
            Some(reading) => reading.await.map_err(|error| std::io::Error::other(error).into()).flatten(),
            None => Ok(()),
        }
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(reading) = &self.reading {
            reading.abort();
        }
    }
}

struct Reader {
    tasks: Tasks,
    records: mpsc::UnboundedSender<Record>,
    receiver: mpsc::UnboundedReceiver<TaskId>,
    state: watch::Sender<State>,
    phase: watch::Receiver<Phase>,
}

impl Reader {
    async fn run(mut self) -> Result<(), Error> {
        let (mut open, mut received) = (BTreeSet::new(), 0);
        let mut next: Option<TaskId> = None;
        loop {
            let _ = tokio::time::timeout(PERIOD, self.phase.wait_for(|phase| *phase == Phase::Over)).await;
            let phase = *self.phase.borrow_and_update();
            while let Ok(id) = self.receiver.try_recv() {
                received += 1;
                open.insert(id);
            }
            let from_next = open.iter().skip_while(|id| next.is_some_and(|next| **id < next)).copied();
            let batch: Vec<TaskId> = match phase {
                Phase::Load => from_next.take(BATCH).collect(),
                Phase::Drain | Phase::Over => open.iter().copied().collect(),
            };
            // The next period continues behind the last task, or begins again.
            next = batch.last().copied().filter(|_| batch.len() == BATCH);
            for id in batch {
                match self.read(id, phase == Phase::Over).await {
                    Ok(true) => drop(open.remove(&id)),
                    Ok(false) => {}
                    Err(error) if error.is_retryable() && phase != Phase::Over => break,
                    Err(error) => return Err(error.into()),
                }
            }
            self.state.send_replace(State { received, open: open.len() });
            if phase == Phase::Over {
                return Ok(());
            }
        }
    }

    /// Records the end of a task, or at last its state; returns whether it has recorded it.
    async fn read(&self, id: TaskId, is_over: bool) -> leasehold::Result<bool> {
        let (state, token, terminal) = match self.tasks.get(id).await {
            Ok(task) => (task.state.to_string(), task.token.get(), task.state.is_terminal()),
            Err(leasehold::Error::UnknownTask(_)) => (MISSING.to_owned(), 0, false),
            Err(error) => return Err(error),
        };
        let is_known = terminal || is_over || state == MISSING;
        if is_known {
            let event = Event::Final { task: id.to_string(), state, token, terminal };
            // The coordinator has ended if the receiver has been dropped.
            let _ = self.records.send(Record { at: BootInstant::now().as_micros(), process: 0, event });
        }
        Ok(is_known)
    }
}
