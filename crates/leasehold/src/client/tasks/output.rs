//! Output of attempts: the last part of what a command wrote, kept in a document for each lease.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Tasks;
use crate::error::Result;
use crate::model::{Retention, Task, TaskId, Timestamp, Token, Ttl, WorkerId};
use crate::store::{NewDocument, PutIf};

/// Key prefix of the documents; the id of the task and the token of the lease follow.
const PREFIX: &str = "output/";
/// Interval at which the output of a running attempt is written.
const WRITE_EVERY: Duration = Duration::from_secs(2);
/// Maximum duration of the last write. The settlement of the task waits for it.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time for which output is kept.
const MAX_KEEP: Ttl = Ttl::from_secs(30 * 24 * 3600);
/// Maximum size of the documents of one task that are returned together. A task may have any number of
/// attempts.
const MAX_READ: usize = 8 << 20;
/// Maximum number of documents that are read at once: over a server, each may have 2 MiB.
const READ_AT_ONCE: u32 = 8;

/// Stream that a line was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Line of the output of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct OutputLine {
    /// Stream that the line was written to.
    pub stream: OutputStream,
    /// Text of the line, without its end.
    pub text: String,
}

/// Output of one attempt at a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AttemptOutput {
    /// Number of the attempt. Attempts that do not count have the number of the next one.
    pub attempt: u32,
    /// Fencing token of the attempt's lease.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub token: Token,
    /// Worker of the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub worker: Option<WorkerId>,
    /// Start of the attempt's lease.
    #[serde(default, with = "rfc3339", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub leased_at: Option<Timestamp>,
    /// Whether the command has ended.
    pub ended: bool,
    /// Number of earlier lines that were not kept.
    pub omitted: u64,
    /// Kept lines, oldest first.
    pub lines: Vec<OutputLine>,
}

impl Tasks {
    /// Returns the kept output of a task's attempts, oldest first: of the newest attempts, if the output
    /// of all of them has more than 8 MiB. Empty if the attempts wrote nothing, if their workers keep no
    /// output, or if the store has no documents.
    pub async fn output(&self, id: TaskId) -> Result<Vec<AttemptOutput>> {
        let Some(docs) = self.inner.store.documents() else { return Ok(Vec::new()) };
        let (mut newest, mut after) = (NewestBodies::default(), None);
        loop {
            let page = docs.list(&format!("{PREFIX}{id}/"), after, READ_AT_ONCE).await?;
            for (_, doc) in page.items {
                newest.add(doc.body);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        if newest.omitted > 0 {
            tracing::debug!(task = %id, attempts = newest.omitted, "omitting the output of the oldest attempts");
        }
        let read = |body: &String| {
            let read = serde_json::from_str(body);
            read.inspect_err(
                |error| tracing::error!(task = %id, %error, "failed to read the output of an attempt"),
            )
            .ok()
        };
        Ok(newest.bodies.iter().filter_map(read).collect())
    }

    /// Creates a recorder that keeps the last `limit` bytes of the output of an attempt; `None` if the
    /// store has no documents.
    pub fn record_output(&self, task: &Task, limit: usize) -> Option<OutputRecorder> {
        self.inner.store.documents()?;
        let kept = Mutex::default();
        let (tasks, task, document) = (self.clone(), task.clone(), tokio::sync::Mutex::default());
        Some(OutputRecorder { tasks, task, limit, kept, document })
    }
}

/// Newest documents of a task, oldest first, up to the maximum size; at least one.
#[derive(Default)]
struct NewestBodies {
    bodies: VecDeque<String>,
    bytes: usize,
    /// Number of documents that were dropped.
    omitted: usize,
}

impl NewestBodies {
    fn add(&mut self, body: String) {
        self.bytes += body.len();
        self.bodies.push_back(body);
        while self.bytes > MAX_READ
            && self.bodies.len() > 1
            && let Some(oldest) = self.bodies.pop_front()
        {
            self.bytes -= oldest.len();
            self.omitted += 1;
        }
    }
}

/// Recorder of the output of one attempt. [`run`](Self::run) writes it to the store from time to time,
/// and [`finish`](Self::finish) at the end.
pub struct OutputRecorder {
    tasks: Tasks,
    task: Task,
    limit: usize,
    kept: Mutex<KeptOutput>,
    document: tokio::sync::Mutex<WrittenDocument>,
}

#[derive(Default)]
struct KeptOutput {
    /// Pieces of whole lines, oldest first. Without the oldest piece they are shorter than the limit.
    pieces: VecDeque<(OutputStream, Vec<u8>)>,
    bytes: usize,
    /// Number of lines in the pieces that were dropped.
    omitted: u64,
    /// Whether there are lines that have not been written to the store.
    is_changed: bool,
    has_ended: bool,
}

/// Document of the attempt, as far as this process has written it.
#[derive(Default)]
struct WrittenDocument {
    version: Option<u64>,
    keep: Option<Ttl>,
}

impl OutputRecorder {
    /// Adds whole lines. The oldest ones are dropped if there are more bytes than the limit.
    pub fn add(&self, stream: OutputStream, lines: &[u8]) {
        let mut kept = self.kept();
        kept.bytes += lines.len();
        kept.pieces.push_back((stream, lines.to_vec()));
        while let Some((_, oldest)) = kept.pieces.front()
            && kept.bytes - oldest.len() >= self.limit
        {
            let (dropped, omitted) = (oldest.len(), oldest.split_inclusive(|byte| *byte == b'\n').count());
            kept.pieces.pop_front();
            kept.bytes -= dropped;
            kept.omitted += omitted as u64;
        }
        kept.is_changed = true;
    }

    /// Writes new lines to the store every two seconds. Never ends by itself.
    pub async fn run(&self) -> Infallible {
        loop {
            tokio::time::sleep(WRITE_EVERY).await;
            if !std::mem::take(&mut self.kept().is_changed) {
                continue;
            }
            if let Err(error) = self.write().await {
                tracing::debug!(task = %self.task.id, %error, "failed to write the output of an attempt; trying again");
                self.kept().is_changed = true;
            }
        }
    }

    /// Writes the end of the output, if the attempt has written anything. Gives up after two seconds,
    /// because the settlement of the task waits for it.
    pub async fn finish(&self) {
        {
            let mut kept = self.kept();
            if kept.pieces.is_empty() {
                return;
            }
            kept.has_ended = true;
        }
        let failed = match tokio::time::timeout(LAST_WRITE_TIMEOUT, self.write()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the store has not answered for {LAST_WRITE_TIMEOUT:?}"),
        };
        tracing::warn!(task = %self.task.id, error = failed, "the output of an attempt was not kept");
    }

    async fn write(&self) -> Result<()> {
        let Some(docs) = self.tasks.inner.store.documents() else { return Ok(()) };
        let mut written = self.document.lock().await;
        let keep = match written.keep {
            Some(keep) => keep,
            None => *written.keep.insert(self.longest_retention().await?),
        };
        let Ok(body) = serde_json::to_string(&self.output()) else { return Ok(()) };
        let key = format!("{PREFIX}{}/{:020}", self.task.id, self.task.token.get());
        let document = NewDocument::new(body).keep(Some(keep));
        let mut result = docs.put_if(&key, written.version, document.clone()).await?;
        // The answer to an earlier write was lost: only this attempt writes this document.
        if let PutIf::Conflict(found) = result {
            result = docs.put_if(&key, found.map(|found| found.version), document).await?;
        }
        if let PutIf::Written(version) = result {
            written.version = Some(version);
        }
        Ok(())
    }

    /// Returns the output so far, cut to the limit.
    fn output(&self) -> AttemptOutput {
        let kept = self.kept();
        let (mut lines, mut bytes) = (VecDeque::new(), 0);
        for (stream, piece) in &kept.pieces {
            for line in piece.split_inclusive(|byte| *byte == b'\n') {
                let line = line.strip_suffix(b"\n").unwrap_or(line);
                let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
                let start = line.ceil_char_boundary(line.len().saturating_sub(self.limit));
                bytes += line.len() - start + 1;
                lines.push_back(OutputLine { stream: *stream, text: line[start..].to_owned() });
            }
        }
        let mut omitted = kept.omitted;
        while bytes > self.limit + 1
            && let Some(oldest) = lines.pop_front()
        {
            bytes -= oldest.text.len() + 1;
            omitted += 1;
        }
        let task = &self.task;
        AttemptOutput {
            attempt: task.attempt,
            token: task.token,
            worker: task.worker,
            leased_at: task.leased_at,
            ended: kept.has_ended,
            omitted,
            lines: lines.into(),
        }
    }

    /// Returns the longest time for which the task is kept once it has finished.
    async fn longest_retention(&self) -> Result<Ttl> {
        let retention = match self.tasks.retention(&self.task.queue).await {
            // A token for one queue may not read the settings.
            Err(error) if error.is_not_permitted() => Retention::DEFAULT.of_queue(&self.task.queue),
            retention => retention?,
        };
        let all = [retention.succeeded, retention.failed, retention.aborted];
        let longest = all.into_iter().map(|keep| keep.unwrap_or(MAX_KEEP)).max();
        Ok(longest.unwrap_or(MAX_KEEP).min(MAX_KEEP))
    }

    fn kept(&self) -> MutexGuard<'_, KeptOutput> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Times as text, as in all JSON for users.
mod rfc3339 {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use crate::model::Timestamp;

    #[expect(clippy::ref_option, reason = "the signature that serde requires")]
    pub(super) fn serialize<S: Serializer>(time: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => to.collect_str(&format_args!("{time:#}")),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::Leasehold;

    #[tokio::test]
    async fn the_output_of_the_newest_attempts_is_returned() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let (store, id) = (leasehold.store(), TaskId::from_uuid(Uuid::from_u128(1)));
        let text = "x".repeat(1 << 20);
        let write = async |attempt: u32| {
            let body = serde_json::json!({
                "attempt": attempt, "token": attempt, "ended": true, "omitted": 0,
                "lines": [{ "stream": "stdout", "text": text }],
            });
            let key = format!("{PREFIX}{id}/{attempt:020}");
            store.documents().unwrap().put_if(&key, None, NewDocument::new(body.to_string())).await.unwrap();
        };
        let tasks = leasehold.tasks().unwrap();
        let attempts = async || {
            let output = tasks.output(id).await.unwrap();
            output.iter().map(|output| output.attempt).collect::<Vec<_>>()
        };
        for attempt in 1..=7 {
            write(attempt).await;
        }
        assert_eq!(attempts().await, [1, 2, 3, 4, 5, 6, 7]);
        for attempt in 8..=18 {
            write(attempt).await;
        }
        assert_eq!(attempts().await, [12, 13, 14, 15, 16, 17, 18]);
        let mut newest = NewestBodies::default();
        newest.add("x".to_owned());
        newest.add("x".repeat(MAX_READ + 1));
        assert_eq!((newest.bodies.len(), newest.omitted), (1, 1), "the newest one is always returned");
    }
}
