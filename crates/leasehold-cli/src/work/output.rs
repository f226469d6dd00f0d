//! Output of commands: forwarded line by line, so that lines of several commands do not mix, or as events,
//! and captured up to a maximum size.

use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::client::{OutputRecorder, OutputStream};
use leasehold::model::{ExecutionId, Payload, QueueName, Task, WorkerId, WorkflowName};
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::output::{OutputWriter, to_line, visible};

/// Maximum length of a line; a longer line is forwarded in pieces.
const MAX_LINE: usize = 64 << 10;
/// Time for which a pipe is still read after the command is dead.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of bytes that are read after the command is dead. A pipe holds less, so further bytes come
/// from another process.
const MAX_REST: usize = 2 << 20;

#[derive(Debug)]
pub(super) enum Captured {
    /// At most the first `limit` bytes, and whether there were more.
    First { limit: usize, bytes: Vec<u8>, more: bool },
    /// At least the last `limit` bytes.
    Last { limit: usize, bytes: Vec<u8> },
}

impl Captured {
    pub(super) fn first(limit: usize) -> Self {
        Self::First { limit, bytes: Vec::new(), more: false }
    }

    pub(super) fn last(limit: usize) -> Self {
        Self::Last { limit, bytes: Vec::new() }
    }

    fn add(&mut self, piece: &[u8]) {
        match self {
            Self::First { limit, bytes, more } => {
                let room = *limit - bytes.len();
                bytes.extend_from_slice(&piece[..piece.len().min(room)]);
                *more |= piece.len() > room;
            }
            Self::Last { limit, bytes } => {
                bytes.extend_from_slice(piece);
                // Not with each piece: moving the whole buffer is expensive.
                if bytes.len() > 2 * *limit {
                    bytes.drain(..bytes.len() - *limit);
                }
            }
        }
    }
}

pub(super) struct OutputReader {
    captured: Arc<Mutex<Captured>>,
    mode: watch::Sender<ReadMode>,
    task: JoinHandle<()>,
}

/// What happens to the rest of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum ReadMode {
    /// The command is alive.
    Alive,
    /// The command is dead: the rest is captured and forwarded.
    Drain,
    /// The rest is captured, and forwarded only as far as the writer accepts it at once.
    Capture,
}

impl OutputReader {
    pub(super) fn new(from: impl Into<OwnedFd>, to: LineWriter, captured: Captured) -> io::Result<Self> {
        let from = pipe::Receiver::from_owned_fd(from.into())?;
        let captured = Arc::new(Mutex::new(captured));
        let mode = watch::Sender::new(ReadMode::Alive);
        let task = tokio::spawn(forward(from, to, captured.clone(), mode.subscribe()));
        Ok(Self { captured, mode, task })
    }

    /// Returns the captured output once all of it has been forwarded. Once `given_up` resolves, the rest is
    /// captured without waiting for the reader of the output: it belongs to the result of the task. Must be
    /// called when the command is dead.
    pub(super) async fn finish(mut self, given_up: impl Future<Output = ()>) -> Captured {
        self.mode.send_replace(ReadMode::Drain);
        tokio::select! {
            biased;
            _ = &mut self.task => {}
            () = given_up => {
                self.mode.send_replace(ReadMode::Capture);
                let _ = (&mut self.task).await;
            }
        }
        let mut captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *captured, Captured::last(0))
    }
}

#[derive(Debug, Clone)]
pub(super) enum LineFormat {
    Raw,
    /// For a log: with this prefix before each line, and without characters that a terminal would interpret.
    Prefixed(String),
    /// For programs: as events of this task.
    Json(Subject),
}

pub(super) struct LineWriter {
    pub(super) to: Arc<OutputWriter>,
    pub(super) format: LineFormat,
    pub(super) stream: Stream,
    /// Recorder that keeps the lines in the store.
    pub(super) recorder: Option<Arc<OutputRecorder>>,
}

impl LineWriter {
    async fn write(&self, lines: Vec<u8>) {
        if let Some(recorder) = &self.recorder {
            let stream = match self.stream {
                Stream::Stdout => OutputStream::Stdout,
                Stream::Stderr => OutputStream::Stderr,
            };
            recorder.add(stream, &lines);
        }
        let written = match &self.format {
            LineFormat::Raw => lines,
            LineFormat::Prefixed(prefix) => {
                each_line(&lines, |line| format!("{prefix}{}\n", escape_line(line)))
            }
            LineFormat::Json(of) => each_line(&lines, |text| {
                let event = WorkEvent::Output { of, stream: self.stream, text };
                to_line(&event).map_or_else(|_| String::new(), |line| line + "\n")
            }),
        };
        self.to.write(written).await;
    }
}

/// Formats each line, without its line ending, by `write`.
fn each_line(lines: &[u8], write: impl Fn(&str) -> String) -> Vec<u8> {
    let mut written = Vec::with_capacity(lines.len());
    for line in lines_of(lines) {
        written.extend_from_slice(write(&line).as_bytes());
    }
    written
}

/// Returns the lines without their endings.
fn lines_of(lines: &[u8]) -> impl Iterator<Item = Cow<'_, str>> {
    lines.split_inclusive(|byte| *byte == b'\n').map(|line| {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line))
    })
}

/// Escapes everything that would move the cursor, hide the prefix, change colours or reverse the
/// text direction.
pub(crate) fn escape_line(line: &str) -> String {
    line.split('\t').map(visible).collect::<Vec<_>>().join("\t")
}

/// Reads the stream to its end, captures a part of it, and forwards all of it.
async fn forward(
    mut from: pipe::Receiver,
    to: LineWriter,
    captured: Arc<Mutex<Captured>>,
    mut mode: watch::Receiver<ReadMode>,
) {
    let mut drained = std::pin::pin!(drain_timeout(mode.clone()));
    let (mut line, mut buffer, mut rest) = (Vec::new(), vec![0; 16 << 10], MAX_REST);
    while rest > 0 {
        // What the command has written is read first, also after the timeout: the writer may have been slow.
        let read = tokio::select! {
            biased;
            read = from.read(&mut buffer) => read,
            () = &mut drained => break,
        };
        // A read error counts as the end of the stream.
        let Ok(read @ 1..) = read else { break };
        if *mode.borrow() != ReadMode::Alive {
            rest = rest.saturating_sub(read);
        }
        let piece = &buffer[..read];
        captured.lock().unwrap_or_else(PoisonError::into_inner).add(piece);
        line.extend_from_slice(piece);
        let whole = line.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let whole = if line.len() - whole > MAX_LINE { line.len() } else { whole };
        if whole > 0 {
            let unfinished = line.split_off(whole);
            forward_lines(&to, std::mem::replace(&mut line, unfinished), &mut mode).await;
        }
    }
    forward_lines(&to, line, &mut mode).await;
}

/// Waits until the writer accepts the lines. In the mode [`ReadMode::Capture`] it does not wait.
async fn forward_lines(to: &LineWriter, lines: Vec<u8>, mode: &mut watch::Receiver<ReadMode>) {
    let capture_only = async {
        let _ = mode.wait_for(|mode| *mode == ReadMode::Capture).await;
    };
    tokio::select! {
        biased;
        () = to.write(lines) => {}
        () = capture_only => {}
    }
}

/// Resolves when the command has been dead for [`DRAIN_TIMEOUT`]: if the stream has not ended by
/// then, another process holds the pipe too.
async fn drain_timeout(mut mode: watch::Receiver<ReadMode>) {
    let _ = mode.wait_for(|mode| *mode >= ReadMode::Drain).await;
    sleep(DRAIN_TIMEOUT).await;
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Subject {
    task: String,
    queue: String,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow: Option<String>,
}

impl Subject {
    pub(super) fn new(task: &Task) -> Self {
        Self {
            task: task.id.to_string(),
            queue: task.queue.to_string(),
            attempt: task.attempt,
            execution_id: ExecutionId::of_task(task).map(|id| id.to_string()),
            workflow: WorkflowName::of_queue(&task.queue).map(|name| name.to_string()),
        }
    }
}

/// Event, printed as one line.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum WorkEvent<'a> {
    /// The worker takes tasks from now on.
    Working { worker: WorkerId, queues: &'a [QueueName], slots: u32 },
    Started {
        #[serde(flatten)]
        of: &'a Subject,
        token: u64,
    },
    /// The command has written a line.
    Output {
        #[serde(flatten)]
        of: &'a Subject,
        stream: Stream,
        text: &'a str,
    },
    Ended {
        #[serde(flatten)]
        of: &'a Subject,
        success: bool,
        outcome: Ending,
        will_retry: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<&'a Payload>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
    },
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Ending {
    Succeeded,
    Failed,
    /// The command requested a later attempt by its exit code.
    Snoozed,
    /// The command was ended: the task was cancelled, its lease was lost, or the worker shuts down.
    Stopped,
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;

    use super::*;

    #[test]
    fn the_first_and_the_last_bytes_are_captured() {
        let (mut first, mut last) = (Captured::first(5), Captured::last(5));
        for piece in ["abc", "def", "ghi", "jkl"] {
            first.add(piece.as_bytes());
            last.add(piece.as_bytes());
        }
        assert!(matches!(first, Captured::First { bytes, more: true, .. } if bytes == b"abcde"));
        assert!(
            matches!(last, Captured::Last { bytes, .. } if bytes.ends_with(b"hijkl") && bytes.len() <= 10)
        );
    }

    /// A command can neither hide its prefix nor write lines that look like those of another command.
    #[test]
    fn log_lines_are_escaped() {
        let log = |text: &str| {
            let lines = each_line(text.as_bytes(), |line| format!("deploy: {}\n", escape_line(line)));
            String::from_utf8(lines).unwrap()
        };
        assert_eq!(log("a\tb\r\n50%\r100%\n"), "deploy: a\tb\ndeploy: 50%\\r100%\n");
        assert_eq!(log("\u{1b}[2K\u{9b}2J\u{202e}x"), "deploy: \\u{1b}[2K\\u{9b}2J\\u{202e}x\n");
    }

    fn line_writer(to: impl Write + Send + 'static) -> LineWriter {
        let (to, format) = (Arc::new(OutputWriter::new(to)), LineFormat::Raw);
        LineWriter { to, format, stream: Stream::Stdout, recorder: None }
    }

    /// Output that is not read until the test ends.
    struct Unread {
        began: std::sync::mpsc::Sender<()>,
        end: std::sync::mpsc::Receiver<()>,
    }

    impl Write for Unread {
        fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
            let _ = (self.began.send(()), self.end.recv());
            Ok(piece.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The result of a task is whole although the output is not read any more.
    #[tokio::test]
    async fn all_output_is_captured_after_forwarding_was_given_up() {
        let ((began, blocked), (_test, end)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let writer = line_writer(Unread { began, end });
        writer.to.try_write(b"earlier\n".to_vec());
        blocked.recv().unwrap();
        for _ in 0..OutputWriter::MAX_QUEUED {
            writer.to.try_write(b"earlier\n".to_vec());
        }
        let (from, mut command) = io::pipe().unwrap();
        command.write_all(&b"{}\n".repeat(1000)).unwrap();
        drop(command);
        let reader = OutputReader::new(from, writer, Captured::first(1 << 20)).unwrap();
        let captured = reader.finish(async {}).await;
        assert!(matches!(captured, Captured::First { bytes, more: false, .. } if bytes.len() == 3000));
    }

    /// Another process holds the pipe, and writes to it from time to time.
    #[tokio::test]
    async fn a_pipe_is_not_read_for_ever_after_the_command_is_dead() {
        let (from, mut other) = io::pipe().unwrap();
        other.write_all(b"still here\n").unwrap();
        thread::spawn(move || {
            while other.write_all(b"still here\n").is_ok() {
                thread::sleep(Duration::from_millis(50));
            }
        });
        let reader = OutputReader::new(from, line_writer(io::sink()), Captured::last(100)).unwrap();
        let finished = reader.finish(std::future::pending());
        let captured = tokio::time::timeout(Duration::from_secs(30), finished).await.unwrap();
        assert!(matches!(captured, Captured::Last { bytes, .. } if bytes.ends_with(b"here\n")));
    }
}
