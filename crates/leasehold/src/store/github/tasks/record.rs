//! Record of a task in the claim on its issue: everything that the issue itself does not contain.
//! Also the line for people.

use serde::{Deserialize, Serialize};

use crate::model::{
    Message, Payload, Priority, Progress, QueueName, RetryPolicy, StopRequest, Task, TaskEvent,
    TaskEventKind, TaskState, Timestamp, Token, WorkerId,
};
use crate::store::github::markup::code;

/// Task, as far as its issue does not contain it. Part of the stored format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pub(super) queue: QueueName,
    state: TaskState,
    run_at: Timestamp,
    ready_at: Timestamp,
    #[serde(default)]
    attempt: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    expiries: u32,
    pub(crate) token: Token,
    pub(crate) version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: Option<WorkerId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leased_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease_expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    progress: Option<Progress>,
    /// Kept as text, so that it stays exactly as it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<Message>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cancel: Option<StopRequest>,
    updated_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    finished_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    events: Vec<TaskEvent>,
    /// Payload, if it was changed by hand; otherwise the issue contains it. The same holds for
    /// `priority` and `retries`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    priority: Option<Priority>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retries: Option<RetryPolicy>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Maximum size of a record: with the line for people, a comment has at most 65,536 characters.
const MAX_RECORD: usize = 48 << 10;
/// Maximum size of a result or of a changed payload.
pub(super) const MAX_VALUE: usize = 24 << 10;
/// Maximum size of a text in an event.
const MAX_MESSAGE: usize = 500;
/// Maximum size of a result in the line for people.
const MAX_SHOWN: usize = 2000;

impl Record {
    /// Returns the record of a task; `issue_task` is the task according to its issue alone.
    pub(super) fn of(task: &Task, issue_task: &Task) -> Self {
        let text = |payload: &Payload| payload.as_str().to_owned();
        let mut record = Self {
            queue: task.queue.clone(),
            state: task.state,
            run_at: task.run_at,
            ready_at: task.ready_at,
            attempt: task.attempt,
            expiries: task.expiries,
            token: task.token,
            version: task.version,
            worker: task.worker,
            leased_at: task.leased_at,
            lease_expires_at: task.lease_expires_at,
            progress: task.progress.clone(),
            result: task.result.as_ref().map(|result| shortened(text(result), MAX_VALUE)),
            error: task.error.clone(),
            cancel: task.cancel.clone(),
            updated_at: task.updated_at,
            finished_at: task.finished_at,
            events: task.events.clone(),
            payload: (task.payload != issue_task.payload).then(|| text(&task.payload)),
            priority: (task.priority != issue_task.priority).then_some(task.priority),
            retries: (task.retries != issue_task.retries).then_some(task.retries),
        };
        record.shorten();
        record
    }

    /// Returns the task; `issue_task` is the task according to its issue alone.
    pub(super) fn task(&self, issue_task: &Task) -> Task {
        let value = |text: &String| Payload::new(text).unwrap_or_default();
        Task {
            queue: self.queue.clone(),
            payload: self.payload.as_ref().map_or_else(|| issue_task.payload.clone(), value),
            state: self.state,
            priority: self.priority.unwrap_or(issue_task.priority),
            run_at: self.run_at,
            ready_at: self.ready_at,
            attempt: self.attempt,
            // Each task is claimed separately, when it is to be started.
            begun: self.state == TaskState::Running,
            expiries: self.expiries,
            retries: self.retries.unwrap_or(issue_task.retries),
            token: self.token,
            version: self.version,
            worker: self.worker,
            leased_at: self.leased_at,
            lease_expires_at: self.lease_expires_at,
            progress: self.progress.clone(),
            result: self.result.as_ref().map(value),
            error: self.error.clone(),
            cancel: self.cancel.clone(),
            updated_at: self.updated_at,
            finished_at: self.finished_at,
            events: self.events.clone(),
            ..issue_task.clone()
        }
    }

    /// Returns the record after its lease was taken away, which counts as expired.
    #[must_use]
    pub(crate) fn ended(&self, now: Timestamp) -> Self {
        let ends = self.lease_expires_at.map(|ends| ends.min(now));
        Self { lease_expires_at: ends, ..self.clone() }
    }

    /// Shortens the record to [`MAX_RECORD`]: first long texts in events, then the oldest events,
    /// then the error and the progress, and at last the result.
    fn shorten(&mut self) {
        if self.size() <= MAX_RECORD {
            return;
        }
        for why in self.events.iter_mut().filter_map(|event| event.why.as_mut()) {
            *why = Message::new(cut(why.as_str(), MAX_MESSAGE));
        }
        while self.size() > MAX_RECORD && !self.events.is_empty() {
            self.events.remove(0);
        }
        if self.size() > MAX_RECORD {
            self.error = self.error.take().map(|error| Message::new(cut(error.as_str(), MAX_MESSAGE)));
            self.progress = None;
        }
        let mut max = MAX_VALUE;
        while self.size() > MAX_RECORD && max > MAX_MESSAGE {
            max /= 2;
            self.result = self.result.take().map(|result| shortened(result, max));
        }
    }

    /// Returns the size as written: characters that could end the HTML comment are escaped.
    fn size(&self) -> usize {
        let json = serde_json::to_string(self).unwrap_or_default();
        json.len() + 5 * json.bytes().filter(|byte| b"<>".contains(byte)).count()
    }

    /// Returns the line for people; `holder` is the author of the record.
    pub(crate) fn line(&self, holder: &str) -> String {
        let (attempt, token) = (self.attempt, self.token);
        let why =
            self.error.as_ref().map(|why| format!(": {}", first_line(why.as_str()))).unwrap_or_default();
        match self.state {
            TaskState::Running => {
                let progress =
                    self.progress.as_ref().map(|done| format!(": {}", progress(done))).unwrap_or_default();
                let since = self.leased_at.unwrap_or(self.updated_at);
                let cancel = if self.cancel.is_some() { " Its cancellation was requested." } else { "" };
                format!(
                    "🔧 {holder} works on it since {since} (attempt {attempt}, token {token}){progress}.{cancel}"
                )
            }
            TaskState::Succeeded => {
                let result = self.result.as_deref().filter(|result| *result != "null").map(block);
                format!("✅ **Done** by {holder} in attempt {attempt}.{}", result.unwrap_or_default())
            }
            TaskState::Failed => format!("❌ **Failed** in attempt {attempt}, and given up{why}."),
            TaskState::Aborted => {
                let cancel = self.cancel.as_ref().map(|cancel| {
                    let reason = cancel.reason.as_ref().map(|reason| format!(": {}", code(reason)));
                    format!(" Requested by {}{}.", code(&cancel.by), reason.unwrap_or_default())
                });
                format!("🚫 **Stopped**{}.{}", why, cancel.unwrap_or_default())
            }
            TaskState::Scheduled => format!("🔁 {}; due at {}.", self.last(&why), self.run_at),
            TaskState::Pending | TaskState::Blocked => format!("↩️ {}; waits for a worker.", self.last(&why)),
        }
    }

    fn last(&self, why: &str) -> String {
        let attempt = self.events.last().map_or(self.attempt, |event| event.attempt);
        match self.events.last().map(|event| (event.kind, &event.by)) {
            Some((TaskEventKind::Failed, _)) => format!("Attempt {attempt} failed{why}"),
            Some((TaskEventKind::Expired, _)) => {
                format!("Attempt {attempt} expired without a heartbeat of its worker")
            }
            Some((TaskEventKind::Returned, _)) => "Returned".to_owned(),
            Some((TaskEventKind::Snoozed, _)) => "Snoozed".to_owned(),
            Some((TaskEventKind::Retried, Some(by))) => format!("Retried by {}", code(by)),
            Some((_, Some(by))) => format!("Changed by {}", code(by)),
            _ => "Changed".to_owned(),
        }
    }
}

/// Shortens a result that does not fit: cuts a string, and replaces any other value with a note. It
/// must not fail, because the work is done.
fn shortened(result: String, max: usize) -> String {
    if result.len() <= max {
        return result;
    }
    tracing::warn!(bytes = result.len(), max, "a result is too large for a comment, and is shortened");
    match serde_json::from_str::<String>(&result) {
        Ok(text) => serde_json::Value::from(format!("{}…", cut(&text, max / 2))).to_string(),
        Err(_) => {
            serde_json::json!({ "leasehold": "the result was too large to be kept", "bytes": result.len() })
                .to_string()
        }
    }
}

fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// Formats the first line of a user's text as code, so that it notifies no user.
fn first_line(text: &str) -> String {
    code(cut(text.lines().next().unwrap_or_default(), MAX_MESSAGE))
}

fn progress(progress: &Progress) -> String {
    let done = match progress.of {
        Some(of) if of > 0 => format!("{} %", progress.done.saturating_mul(100) / of),
        _ => progress.done.to_string(),
    };
    match &progress.note {
        Some(note) => format!("{done} — {}", first_line(note.as_str())),
        None => done,
    }
}

fn block(json: &str) -> String {
    let text = json.replace("```", "'''").replace("<!--", "<! --");
    format!("\n\n```json\n{}\n```", cut(&text, MAX_SHOWN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AttemptResult, NewTask, Settle, TaskId, TaskOp, Ttl};
    use uuid::Uuid;

    fn task_from_issue() -> Task {
        let queue = QueueName::new("q").unwrap();
        let new = NewTask::new(TaskId::numbered(7).unwrap(), queue, Payload::new("{\"a\": 1.50}").unwrap());
        Task::new(&new, Timestamp::from_micros(1_700_000_000_000_000))
    }

    fn lease() -> TaskOp {
        let worker = WorkerId::from_uuid(Uuid::from_u128(5));
        TaskOp::Lease { worker, ttl: Ttl::from_secs(30), begun: true }
    }

    #[test]
    fn a_task_is_the_same_after_a_round_trip() {
        let (issue_task, now) = (task_from_issue(), Timestamp::from_micros(1_700_000_001_000_000));
        let mut task = issue_task.clone();
        task.apply(&lease(), now);
        task.progress = Some(Progress::of(2, 5).note("encoding"));
        let record = Record::of(&task, &issue_task);
        assert_eq!(record.task(&issue_task), task);
        assert_eq!(
            record.line("`ada`"),
            "🔧 `ada` works on it since 2023-11-14T22:13:21Z (attempt 1, token 1700000001000000): 40 % — `encoding`."
        );
        let result = Payload::new("{\"url\": \"<!-- leasehold:v1 {} -->\", \"n\": 1.50}").unwrap();
        let done = Settle { id: task.id, token: task.token, result: AttemptResult::Done(Some(result)) };
        task.apply(&TaskOp::Settle(done), now);
        let record = Record::of(&task, &issue_task);
        let json = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&json).unwrap().task(&issue_task), task);
        assert!(!record.line("`ada`").contains("<!--"));
    }

    /// Guards the stored format: every later version has to read a record of this one.
    #[test]
    fn a_record_of_the_first_version_is_parsed() {
        let json = r#"{"queue":"agent","state":"running","runAt":1,"readyAt":2,"attempt":1,"token":7,"version":2,"worker":"00000000-0000-0000-0000-000000000005","leasedAt":3,"leaseExpiresAt":4,"progress":{"done":2,"of":5,"note":"encoding"},"updatedAt":3,"events":[{"at":3,"kind":"failed","attempt":1,"token":6,"why":"no"}]}"#;
        let record: Record = serde_json::from_str(json).unwrap();
        let task = record.task(&task_from_issue());
        assert_eq!((task.state, task.attempt, task.version), (TaskState::Running, 1, 2));
        assert_eq!((task.payload, task.retries), (task_from_issue().payload, task_from_issue().retries));
    }

    #[test]
    fn a_record_of_any_size_fits_into_a_comment() {
        let (issue_task, now) = (task_from_issue(), Timestamp::from_micros(1_700_000_001_000_000));
        let mut task =
            Task { retries: RetryPolicy { attempts: 1000, ..issue_task.retries }, ..issue_task.clone() };
        for _ in 0..60 {
            task.state = TaskState::Pending;
            task.apply(&lease(), now);
            let verdict = AttemptResult::Retry(Message::new("x\"".repeat(4000)), None);
            task.apply(&TaskOp::Settle(Settle { id: task.id, token: task.token, result: verdict }), now);
        }
        for (result, kept) in [
            (Payload::of(&["x".repeat(1 << 19)]), "too large to be kept"),
            (Payload::of(&"<\"\n".repeat(1 << 17)), "…"),
            (Payload::of(&"x".repeat(1 << 19)), "xxx…"),
        ] {
            task.result = Some(result.unwrap());
            let record = Record::of(&task, &issue_task);
            assert!(record.size() <= MAX_RECORD, "{}", record.size());
            let line = record.line("`ada`");
            assert!(line.len() < 10_000);
            assert!(record.result.as_ref().unwrap().contains(kept), "{:?}", record.result);
            assert!(record.task(&issue_task).result.is_some_and(|result| result.as_str() != "null"));
        }
    }
}
