//! Codec of tasks in the scripts: big-endian, texts with a length prefix. `common.lua` defines the
//! order of the fields.

use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::super::error::unreadable;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    Fingerprint, LockName, Message, NewTask, Payload, Priority, QueueName, RetryPolicy, Reuse, Task, TaskId,
    TaskKey, TaskState, Timestamp, Token, Ttl, When, WorkerId,
};

/// Format of most tasks.
const FORMAT: u8 = 2;
/// Format of tasks with a lock or with a runner that waits for them: the last 8 bytes are the
/// deadline of the runner.
const WITH_DEADLINE: u8 = 3;
/// Previous format, which is read but not written: it lacks whether a task has begun and how many
/// of its leases expired.
const FORMAT_1: u8 = 1;

/// Size above which a payload is stored separately, so that it is not written again with every
/// change of its task.
const LARGE: usize = 512;

/// Task as read: a change compares `record`.
pub(super) struct Stored {
    pub(super) task: Task,
    pub(super) record: Vec<u8>,
}

impl Stored {
    pub(super) fn read(id: &[u8], record: Vec<u8>, payload: Vec<u8>) -> Result<Self> {
        let task = self::id(id).and_then(|id| Reader(&record).task(id, payload));
        let task = task.ok_or_else(|| unreadable("a task"))?;
        Ok(Self { task, record })
    }
}

/// Task to be stored.
pub(super) struct Packed {
    pub(super) record: Vec<u8>,
    /// Payload, if it is stored separately.
    pub(super) payload: Option<Payload>,
}

/// Packs a task.
pub(super) fn pack(task: &Task) -> Result<Packed> {
    let payload = external_payload(&task.payload);
    let changed = task.version != 1;
    let format = if task.lock.is_some() || task.runner_deadline.is_some() { WITH_DEADLINE } else { FORMAT };
    let mut record = vec![format, task.state as u8, task.archived.into(), payload.is_some().into()];
    record.extend([u8::from(task.key.is_none()), changed.into()]);
    record.extend(priority(task.priority));
    record.extend(task.retries.attempts.to_be_bytes());
    record.extend(micros(task.run_at));
    record.extend(micros(task.ready_at));
    record.extend(micros(task.created_at));
    if changed {
        record.extend(task.attempt.to_be_bytes());
        record.extend(task.token.get().to_be_bytes());
        record.extend(task.version.to_be_bytes());
        record.extend(micros(task.updated_at));
        for time in [task.leased_at, task.lease_expires_at, task.finished_at] {
            record.extend(micros(time.unwrap_or_default()));
        }
        record.push(task.begun.into());
        record.extend(task.expiries.to_be_bytes());
        short(&mut record, task.worker.as_ref().map_or(&[], |worker| worker.as_uuid().as_bytes()));
    }
    let fields = StaticFields {
        queue: &task.queue,
        lock: task.lock.as_ref(),
        key: task.key.as_ref(),
        retries: task.retries,
    };
    fields.pack(&mut record, task.fingerprint, &task.payload);
    let extras = [
        text(task.progress.as_ref())?,
        task.result.as_ref().map(|result| result.as_str().to_owned()).unwrap_or_default(),
        // The prefix distinguishes an empty message from none.
        task.error.as_ref().map(|error| format!("={error}")).unwrap_or_default(),
        text(task.cancel.as_ref())?,
        text((!task.events.is_empty()).then_some(&task.events))?,
    ];
    if extras.iter().any(|extra| !extra.is_empty()) {
        for extra in extras {
            long(&mut record, extra.as_bytes());
        }
    }
    if format == WITH_DEADLINE {
        record.extend(micros(task.runner_deadline.unwrap_or_default()));
    }
    Ok(Packed { record, payload })
}

/// Packs the arguments from which `enqueue.lua` builds the record of a new task.
pub(super) fn enqueue_arguments(new: &NewTask) -> Vec<u8> {
    let (when, time) = match new.when {
        When::Now => (0, 0),
        When::At(time) => (1, time.as_micros()),
        When::In(after) => (2, after.as_micros()),
    };
    let mut packed = vec![when];
    packed.extend(time.to_be_bytes());
    packed.extend(priority(new.priority));
    packed.extend(new.retries.attempts.to_be_bytes());
    packed.push(match new.reuse {
        Reuse::Never => 0,
        Reuse::Failed => 1,
        Reuse::Finished => 2,
    });
    // No limit is packed as the largest number, which has the same effect.
    packed.extend(new.lock_queue_limit.unwrap_or(u32::MAX).to_be_bytes());
    packed.extend(new.runner_ttl.map_or(0, Ttl::as_micros).to_be_bytes());
    short(&mut packed, new.key.as_ref().map_or(&[], |key| key.as_str().as_bytes()));
    packed
}

/// Packs the end of the record of a new task.
pub(super) fn record_tail(new: &NewTask) -> Vec<u8> {
    let mut packed = Vec::with_capacity(64 + new.payload.as_str().len().min(LARGE));
    let fields = StaticFields {
        queue: &new.queue,
        lock: new.lock.as_ref(),
        key: new.key.as_ref(),
        retries: new.retries,
    };
    fields.pack(&mut packed, new.fingerprint(), &new.payload);
    packed
}

/// Returns a payload that is stored separately.
pub(super) fn external_payload(payload: &Payload) -> Option<Payload> {
    (payload.as_str().len() > LARGE).then(|| payload.clone())
}

/// Returns a value as JSON; an empty text for `None`.
pub(super) fn text<T: Serialize>(value: Option<&T>) -> Result<String> {
    value.map_or_else(|| Ok(String::new()), |value| serde_json::to_string(value)).map_err(|error| {
        Error::store(StoreErrorKind::Broken, "a task cannot be written", "please report this").because(error)
    })
}

/// Reads the id of a task.
pub(super) fn id(bytes: &[u8]) -> Option<TaskId> {
    Uuid::from_slice(bytes).ok().map(TaskId::from_uuid)
}

/// Returns a state by its number.
pub(super) fn state(number: i64) -> Option<TaskState> {
    usize::try_from(number).ok().and_then(|number| TaskState::ALL.get(number)).copied()
}

/// Fields that mostly stay as they were when the task was enqueued.
struct StaticFields<'a> {
    queue: &'a QueueName,
    lock: Option<&'a LockName>,
    key: Option<&'a TaskKey>,
    retries: RetryPolicy,
}

impl StaticFields<'_> {
    fn pack(&self, packed: &mut Vec<u8>, fingerprint: Fingerprint, payload: &Payload) {
        short(packed, self.queue.as_str().as_bytes());
        short(packed, self.lock.map_or(&[], |lock| lock.as_str().as_bytes()));
        packed.extend(fingerprint.get().to_be_bytes());
        let mut rest = Vec::new();
        rest.extend(self.retries.initial_delay.as_micros().to_be_bytes());
        rest.extend(self.retries.max_delay.as_micros().to_be_bytes());
        short(&mut rest, self.key.map_or(&[], |key| key.as_str().as_bytes()));
        if payload.as_str().len() <= LARGE {
            rest.extend(payload.as_str().as_bytes());
        }
        long(packed, &rest);
    }
}

fn micros(time: Timestamp) -> [u8; 8] {
    time.as_micros().to_be_bytes()
}

fn priority(priority: Priority) -> [u8; 2] {
    i16::try_from(priority.get()).expect("a priority is at most 1000").to_be_bytes()
}

/// Appends a name or key, which has at most 255 bytes.
fn short(packed: &mut Vec<u8>, text: &[u8]) {
    packed.push(u8::try_from(text.len()).expect("names have at most 255 bytes"));
    packed.extend(text);
}

fn long(packed: &mut Vec<u8>, text: &[u8]) {
    packed.extend(u32::try_from(text.len()).expect("texts have at most a few MiB").to_be_bytes());
    packed.extend(text);
}

/// Reads values from the front of the remaining bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn task(&mut self, id: TaskId, payload: Vec<u8>) -> Option<Task> {
        let format = self.byte()?;
        let runner_deadline = match format {
            FORMAT | FORMAT_1 => None,
            WITH_DEADLINE => {
                let (record, deadline) = self.0.split_last_chunk()?;
                self.0 = record;
                let deadline = Timestamp::from_micros(u64::from_be_bytes(*deadline));
                (deadline != Timestamp::default()).then_some(deadline)
            }
            _ => return None,
        };
        let state = state(self.byte()?.into())?;
        let (archived, external_payload, keyless, changed) =
            (self.flag()?, self.flag()?, self.flag()?, self.flag()?);
        let priority = Priority::new(i16::from_be_bytes(self.array()?).into()).ok()?;
        let attempts = self.count()?;
        let (run_at, ready_at, created_at) = (self.time()?, self.time()?, self.time()?);
        let mut task = Task {
            id,
            queue: QueueName::new("-").ok()?,
            payload: Payload::default(),
            state,
            priority,
            run_at,
            ready_at,
            key: None,
            fingerprint: Fingerprint::from_u64(0),
            lock: None,
            attempt: 0,
            begun: false,
            expiries: 0,
            retries: RetryPolicy { attempts, ..RetryPolicy::default() },
            token: Token::default(),
            version: 1,
            worker: None,
            leased_at: None,
            lease_expires_at: None,
            progress: None,
            result: None,
            error: None,
            cancel: None,
            created_at,
            updated_at: created_at,
            finished_at: None,
            archived,
            runner_deadline,
            events: Vec::new(),
        };
        if changed {
            self.changed(&mut task, format)?;
        }
        task.queue = QueueName::new(self.short_text()?).ok()?;
        task.lock = non_empty(self.short_text()?).map(LockName::new).transpose().ok()?;
        task.fingerprint = Fingerprint::from_u64(self.number()?);
        let mut rest = Reader(self.long()?);
        task.retries.initial_delay = Ttl::try_from(rest.number()?).ok()?;
        task.retries.max_delay = Ttl::try_from(rest.number()?).ok()?;
        let key = rest.short_text()?;
        task.key = non_empty(key).filter(|_| !keyless).map(TaskKey::new).transpose().ok()?;
        let payload = if external_payload { payload } else { rest.0.to_vec() };
        task.payload = Payload::trusted(String::from_utf8(payload).ok()?);
        if !self.0.is_empty() {
            self.extras(&mut task)?;
        }
        Some(task)
    }

    fn changed(&mut self, task: &mut Task, format: u8) -> Option<()> {
        let optional = |time: Timestamp| (time != Timestamp::default()).then_some(time);
        task.attempt = self.count()?;
        task.token = Token::new(self.number()?).ok()?;
        task.version = self.number()?;
        task.updated_at = self.time()?;
        task.leased_at = optional(self.time()?);
        task.lease_expires_at = optional(self.time()?);
        task.finished_at = optional(self.time()?);
        // Tasks that run in the previous format were leased when each lease counted as an attempt.
        (task.begun, task.expiries) = match format {
            FORMAT_1 => (task.state == TaskState::Running, 0),
            _ => (self.flag()?, self.count()?),
        };
        task.worker = match self.short()? {
            [] => None,
            id => Some(WorkerId::from_uuid(Uuid::from_slice(id).ok()?)),
        };
        Some(())
    }

    fn extras(&mut self, task: &mut Task) -> Option<()> {
        task.progress = json(self.long()?).ok()?;
        task.result = non_empty(self.long_text()?).map(Payload::trusted);
        task.error = self.long_text()?.strip_prefix('=').map(Message::new);
        task.cancel = json(self.long()?).ok()?;
        task.events = json(self.long()?).ok()?.unwrap_or_default();
        Some(())
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(length)?;
        self.0 = left;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Option<bool> {
        self.byte().map(|byte| byte == 1)
    }

    fn count(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn time(&mut self) -> Option<Timestamp> {
        self.number().map(Timestamp::from_micros)
    }

    fn short(&mut self) -> Option<&'a [u8]> {
        let length = self.byte()?;
        self.take(length.into())
    }

    fn short_text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.short()?).ok()
    }

    fn long(&mut self) -> Option<&'a [u8]> {
        let length = self.count()?;
        self.take(usize::try_from(length).ok()?)
    }

    fn long_text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.long()?).ok()
    }
}

/// Converts an empty text to `None`.
fn non_empty(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Parses JSON; an empty text means `None`.
fn json<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<Option<T>> {
    match text {
        [] => Ok(None),
        text => serde_json::from_slice(text).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Progress;

    /// Record in format 1, which every later version must still read.
    const STORED_1: &str = "01030000000100030000000500060a24181e400000060a24181e400100060a24181e40000000000100060a24181e40090000 \
        00000000000200060a24181e400900060a24181e400900060a2419e803890000000000000000100000000000000000000000 \
        0000000007046d61696c016c9c3e82dd6fcae8b10000001900000000000f424000000000d693a400016b7b2261223a317d00 \
        00000a7b22646f6e65223a317d00000000000000033d6e6f0000000000000000";

    /// The same task in format 2: begun, after three expired leases.
    const STORED_2: &str = "02030000000100030000000500060a24181e400000060a24181e400100060a24181e40000000000100060a24181e40090000 \
        00000000000200060a24181e400900060a24181e400900060a2419e803890000000000000000010000000310000000000000 \
        00000000000000000007046d61696c016c9c3e82dd6fcae8b10000001900000000000f424000000000d693a400016b7b2261 \
        223a317d0000000a7b22646f6e65223a317d00000000000000033d6e6f0000000000000000";

    fn bytes(hex: &str) -> Vec<u8> {
        let hex: String = hex.split_whitespace().collect();
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn a_running_task_of_format_1_has_begun_and_is_written_in_format_2() {
        let id = TaskId::from_uuid(Uuid::from_u128(1));
        let read = |hex| Stored::read(id.as_uuid().as_bytes(), bytes(hex), Vec::new()).unwrap().task;
        let (old, new) = (read(STORED_1), read(STORED_2));
        assert_eq!((old.begun, old.expiries), (true, 0));
        assert_eq!(Task { expiries: 3, ..old }, new);
    }

    #[test]
    fn a_task_is_read_and_written_in_the_format_that_it_needs() {
        let stored = bytes(STORED_2);
        let id = TaskId::from_uuid(Uuid::from_u128(1));
        let Stored { task, record } =
            Stored::read(id.as_uuid().as_bytes(), stored.clone(), Vec::new()).unwrap();
        assert_eq!((task.queue.as_str(), task.state, task.attempt), ("mail", TaskState::Running, 1));
        assert_eq!((task.priority.get(), task.version), (3, 2));
        assert_eq!(task.token.get(), 1_700_000_000_000_009);
        assert_eq!(task.lease_expires_at.unwrap().as_micros(), 1_700_000_030_000_009);
        assert_eq!(task.fingerprint, Fingerprint::from_u64(0x9c3e_82dd_6fca_e8b1));
        assert_eq!((task.payload.as_str(), task.retries), ("{\"a\":1}", RetryPolicy::default()));
        assert_eq!((task.key.as_ref().unwrap().as_str(), task.lock.as_ref().unwrap().as_str()), ("k", "l"));
        assert_eq!(task.progress, Some(Progress { done: 1, ..Progress::default() }));
        assert_eq!((task.error.clone(), task.result.clone()), (Some(Message::new("no")), None));
        assert_eq!(record, stored);
        // The task has a lock, so it is written with a deadline.
        let mut written = stored.clone();
        written[0] = WITH_DEADLINE;
        written.extend([0; 8]);
        assert_eq!(pack(&task).unwrap().record, written);
        let again = Stored::read(id.as_uuid().as_bytes(), written, Vec::new()).unwrap().task;
        assert_eq!(again, task);
        let unlocked = Task { lock: None, ..task };
        assert_eq!(pack(&unlocked).unwrap().record[0], FORMAT);
        let wanted = Task { runner_deadline: Some(Timestamp::from_micros(7)), ..unlocked };
        let packed = pack(&wanted).unwrap().record;
        assert_eq!((packed[0], packed.last()), (WITH_DEADLINE, Some(&7)));
        assert_eq!(Stored::read(id.as_uuid().as_bytes(), packed, Vec::new()).unwrap().task, wanted);
    }

    #[test]
    fn invalid_tasks_are_rejected() {
        let id = [0; 16];
        for record in [&b""[..], b"\x01", b"\x02", b"\x03", b"\x04", b"hello", &[0xff; 100], &[1; 100]] {
            let error = Stored::read(&id, record.to_vec(), Vec::new()).err().expect("an error");
            assert_eq!(error.code(), "STORE_BROKEN");
        }
    }

    #[test]
    fn an_empty_message_is_kept() {
        let id = TaskId::from_uuid(Uuid::from_u128(1));
        let new = NewTask::new(id, QueueName::new("q").unwrap(), Payload::default());
        let mut task = Task::new(&new, Timestamp::from_micros(5));
        task.version = 2;
        task.error = Some(Message::new(""));
        let packed = pack(&task).unwrap();
        let stored = Stored::read(id.as_uuid().as_bytes(), packed.record, Vec::new()).unwrap();
        assert_eq!(stored.task, task);
    }
}
