//! Codec of tasks in the scripts: big-endian, texts with a length prefix. `begin.lua` defines the order
//! of the fields, `common.lua` also that of format 1, which is only read.

use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::super::error::unreadable;
use super::super::scripts::Reader;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    Fingerprint, LockName, Message, NewTask, Payload, Priority, QueueName, RetryPolicy, Reuse, Task, TaskId,
    TaskKey, TaskState, Timestamp, Token, Ttl, When, WorkerId,
};

const FORMAT: u8 = 2;
const OLD_FORMAT: u8 = 1;

/// Size above which a payload is stored separately, so that changes of its task do not write it.
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

pub(super) struct Packed {
    pub(super) record: Vec<u8>,
    /// Payload, if it is stored separately.
    pub(super) payload: Option<Payload>,
}

pub(super) fn pack(task: &Task) -> Result<Packed> {
    let payload = external_payload(&task.payload);
    let extras = [
        text(task.progress.as_ref())?,
        task.result.as_ref().map(|result| result.as_str().to_owned()).unwrap_or_default(),
        // The prefix distinguishes an empty message from none.
        task.error.as_ref().map(|error| format!("={error}")).unwrap_or_default(),
        text(task.cancel.as_ref())?,
        text((!task.events.is_empty()).then_some(&task.events))?,
    ];
    let has_extras = extras.iter().any(|extra| !extra.is_empty());
    let mut record = vec![FORMAT, task.state as u8];
    let flags =
        [task.archived, payload.is_some(), task.key.is_none(), task.begun, has_extras, task.lock.is_some()];
    record.extend(flags.into_iter().chain([task.worker.is_some()]).map(u8::from));
    for count in [task.retries.attempts, task.attempt, task.expiries] {
        record.extend(count.to_be_bytes());
    }
    let updated_at = if task.version == 1 { Timestamp::default() } else { task.updated_at };
    record.extend(task.token.get().to_be_bytes());
    record.extend(task.version.to_be_bytes());
    record.extend(micros(updated_at));
    for time in [task.leased_at, task.lease_expires_at, task.finished_at, task.runner_deadline] {
        record.extend(micros(time.unwrap_or_default()));
    }
    record.extend(task.worker.as_ref().map_or(&[0; 16], |worker| worker.as_uuid().as_bytes()));
    record.extend(priority(task.priority));
    for time in [task.run_at, task.ready_at, task.created_at] {
        record.extend(micros(time));
    }
    let fields = StaticFields {
        queue: &task.queue,
        lock: task.lock.as_ref(),
        key: task.key.as_ref(),
        retries: task.retries,
        timeout: task.timeout,
    };
    fields.pack(&mut record, task.fingerprint, &task.payload);
    if has_extras {
        for extra in extras {
            long(&mut record, extra.as_bytes());
        }
    }
    Ok(Packed { record, payload })
}

/// Whether `add.lua` can enqueue the task.
pub(super) fn is_plain(new: &NewTask) -> bool {
    new.when == When::Now
        && new.key.is_none()
        && new.lock.is_none()
        && new.runner_ttl.is_none()
        && new.payload.as_str().len() <= LARGE
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

pub(super) fn record_tail(new: &NewTask) -> Vec<u8> {
    let mut packed = Vec::with_capacity(64 + new.payload.as_str().len().min(LARGE));
    let fields = StaticFields {
        queue: &new.queue,
        lock: new.lock.as_ref(),
        key: new.key.as_ref(),
        retries: new.retries,
        timeout: new.timeout,
    };
    fields.pack(&mut packed, new.fingerprint(), &new.payload);
    packed
}

pub(super) fn external_payload(payload: &Payload) -> Option<Payload> {
    (payload.as_str().len() > LARGE).then(|| payload.clone())
}

/// Returns a value as JSON; an empty text for `None`.
pub(super) fn text<T: Serialize>(value: Option<&T>) -> Result<String> {
    value.map_or_else(|| Ok(String::new()), |value| serde_json::to_string(value)).map_err(|error| {
        Error::store(StoreErrorKind::Broken, "a task cannot be written", "please report this").because(error)
    })
}

pub(super) fn id(bytes: &[u8]) -> Option<TaskId> {
    Uuid::from_slice(bytes).ok().map(TaskId::from_uuid)
}

pub(super) fn state(number: i64) -> Option<TaskState> {
    usize::try_from(number).ok().and_then(|number| TaskState::ALL.get(number)).copied()
}

/// Fields that mostly stay as they were when the task was enqueued.
struct StaticFields<'a> {
    queue: &'a QueueName,
    lock: Option<&'a LockName>,
    key: Option<&'a TaskKey>,
    retries: RetryPolicy,
    timeout: Option<Ttl>,
}

/// Bit of the first delay that says that a timeout follows the key. No delay has it, so a leasehold that does not
/// know timeouts refuses such a record.
const HAS_TIMEOUT: u64 = 1 << 63;

impl StaticFields<'_> {
    fn pack(&self, packed: &mut Vec<u8>, fingerprint: Fingerprint, payload: &Payload) {
        short(packed, self.queue.as_str().as_bytes());
        short(packed, self.lock.map_or(&[], |lock| lock.as_str().as_bytes()));
        packed.extend(fingerprint.get().to_be_bytes());
        let mut rest = Vec::new();
        let flag = self.timeout.map_or(0, |_| HAS_TIMEOUT);
        rest.extend((self.retries.initial_delay.as_micros() | flag).to_be_bytes());
        rest.extend(self.retries.max_delay.as_micros().to_be_bytes());
        // `retention.lua` reads the key here.
        short(&mut rest, self.key.map_or(&[], |key| key.as_str().as_bytes()));
        if let Some(timeout) = self.timeout {
            rest.extend(timeout.as_micros().to_be_bytes());
        }
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

impl<'a> Reader<'a> {
    fn task(&mut self, id: TaskId, payload: Vec<u8>) -> Option<Task> {
        let format = self.byte()?;
        let state = state(self.byte()?.into())?;
        let (archived, external_payload, keyless) = (self.flag()?, self.flag()?, self.flag()?);
        // All other fields are read below.
        let fingerprint = Some(Fingerprint::from_u64(0));
        let new = NewTask { fingerprint, ..NewTask::new(id, QueueName::new("-").ok()?, Payload::default()) };
        let mut task = Task { state, archived, ..Task::new(&new, Timestamp::default()) };
        match format {
            FORMAT => self.task_head(&mut task)?,
            OLD_FORMAT => self.old_task_head(&mut task)?,
            _ => return None,
        }
        task.queue = QueueName::new(self.text()?).ok()?;
        task.lock = non_empty(self.text()?).map(LockName::new).transpose().ok()?;
        task.fingerprint = Fingerprint::from_u64(self.u64()?);
        let mut rest = Reader(self.long()?);
        let initial_delay = rest.u64()?;
        task.retries.initial_delay = Ttl::try_from(initial_delay & !HAS_TIMEOUT).ok()?;
        task.retries.max_delay = Ttl::try_from(rest.u64()?).ok()?;
        let key = rest.text()?;
        task.key = non_empty(key).filter(|_| !keyless).map(TaskKey::new).transpose().ok()?;
        if initial_delay & HAS_TIMEOUT != 0 {
            task.timeout = Some(Ttl::try_from(rest.u64()?).ok()?);
        }
        let payload = if external_payload { payload } else { rest.0.to_vec() };
        task.payload = Payload::trusted(String::from_utf8(payload).ok()?);
        if !self.0.is_empty() {
            self.extras(&mut task)?;
        }
        Some(task)
    }

    /// Reads what follows the first flags, up to the static fields.
    fn task_head(&mut self, task: &mut Task) -> Option<()> {
        task.begun = self.flag()?;
        let (_has_extras, _has_lock, has_worker) = (self.flag()?, self.flag()?, self.flag()?);
        (task.retries.attempts, task.attempt, task.expiries) = (self.u32()?, self.u32()?, self.u32()?);
        (task.token, task.version) = (Token::new(self.u64()?).ok()?, self.u64()?);
        task.updated_at = self.timestamp()?;
        task.leased_at = non_zero(self.timestamp()?);
        task.lease_expires_at = non_zero(self.timestamp()?);
        task.finished_at = non_zero(self.timestamp()?);
        task.runner_deadline = non_zero(self.timestamp()?);
        let worker = Uuid::from_bytes(self.array()?);
        task.worker = has_worker.then(|| WorkerId::from_uuid(worker));
        task.priority = Priority::new(i16::from_be_bytes(self.array()?).into()).ok()?;
        (task.run_at, task.ready_at, task.created_at) =
            (self.timestamp()?, self.timestamp()?, self.timestamp()?);
        if task.version == 1 {
            task.updated_at = task.created_at;
        }
        Some(())
    }

    /// Reads the same of a record of format 1.
    fn old_task_head(&mut self, task: &mut Task) -> Option<()> {
        let changed = self.flag()?;
        task.priority = Priority::new(i16::from_be_bytes(self.array()?).into()).ok()?;
        task.retries.attempts = self.u32()?;
        (task.run_at, task.ready_at, task.created_at) =
            (self.timestamp()?, self.timestamp()?, self.timestamp()?);
        task.runner_deadline = non_zero(self.timestamp()?);
        task.updated_at = task.created_at;
        if changed {
            task.attempt = self.u32()?;
            task.token = Token::new(self.u64()?).ok()?;
            task.version = self.u64()?;
            task.updated_at = self.timestamp()?;
            task.leased_at = non_zero(self.timestamp()?);
            task.lease_expires_at = non_zero(self.timestamp()?);
            task.finished_at = non_zero(self.timestamp()?);
            (task.begun, task.expiries) = (self.flag()?, self.u32()?);
            task.worker = match self.short()? {
                [] => None,
                id => Some(WorkerId::from_uuid(Uuid::from_slice(id).ok()?)),
            };
        }
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

    fn flag(&mut self) -> Option<bool> {
        self.byte().map(|byte| byte == 1)
    }

    fn timestamp(&mut self) -> Option<Timestamp> {
        self.u64().map(Timestamp::from_micros)
    }

    fn long_text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.long()?).ok()
    }
}

fn non_zero(time: Timestamp) -> Option<Timestamp> {
    Some(time).filter(|time| *time != Timestamp::default())
}

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

    /// Record of a task that has begun, after three expired leases. Every later version must still
    /// read it.
    const STORED: &str = "02030000000101010100000005000000010000000300060a24181e4009000000000000000200060a24181e400900060a2418 \
        1e400900060a2419e803890000000000000000000000000000000000000000000000000000000000000007000300060a2418 \
        1e400000060a24181e400100060a24181e4000046d61696c016c9c3e82dd6fcae8b10000001900000000000f424000000000 \
        d693a400016b7b2261223a317d0000000a7b22646f6e65223a317d00000000000000033d6e6f0000000000000000";

    /// The same record in format 1.
    const STORED_OLD: &str = "01030000000100030000000500060a24181e400000060a24181e400100060a24181e40000000000000000000000000010006 \
        0a24181e4009000000000000000200060a24181e400900060a24181e400900060a2419e80389000000000000000001000000 \
        031000000000000000000000000000000007046d61696c016c9c3e82dd6fcae8b10000001900000000000f424000000000d6 \
        93a400016b7b2261223a317d0000000a7b22646f6e65223a317d00000000000000033d6e6f0000000000000000";

    fn bytes(hex: &str) -> Vec<u8> {
        let hex: String = hex.split_whitespace().collect();
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn a_stored_task_is_read_and_written() {
        let stored = bytes(STORED);
        let id = TaskId::from_uuid(Uuid::from_u128(1));
        let Stored { task, record } =
            Stored::read(id.as_uuid().as_bytes(), stored.clone(), Vec::new()).unwrap();
        assert_eq!((task.queue.as_str(), task.state, task.attempt), ("mail", TaskState::Running, 1));
        assert_eq!((task.priority.get(), task.version, task.begun, task.expiries), (3, 2, true, 3));
        assert_eq!(task.token.get(), 1_700_000_000_000_009);
        assert_eq!(task.lease_expires_at.unwrap().as_micros(), 1_700_000_030_000_009);
        assert_eq!(task.fingerprint, Fingerprint::from_u64(0x9c3e_82dd_6fca_e8b1));
        assert_eq!((task.payload.as_str(), task.retries), ("{\"a\":1}", RetryPolicy::default()));
        assert_eq!((task.key.as_ref().unwrap().as_str(), task.lock.as_ref().unwrap().as_str()), ("k", "l"));
        assert_eq!(task.progress, Some(Progress { done: 1, ..Progress::default() }));
        assert_eq!((task.error.clone(), task.result.clone()), (Some(Message::new("no")), None));
        assert_eq!(record, stored);
        assert_eq!(pack(&task).unwrap().record, stored);
        let old = Stored::read(id.as_uuid().as_bytes(), bytes(STORED_OLD), Vec::new()).unwrap();
        assert_eq!((old.task, old.record), (task.clone(), bytes(STORED_OLD)));
        let wanted = Task { lock: None, runner_deadline: Some(Timestamp::from_micros(7)), ..task };
        let packed = pack(&wanted).unwrap().record;
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
