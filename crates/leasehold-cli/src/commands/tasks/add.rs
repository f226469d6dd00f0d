//! `tasks add`: adds one task, or with `--lines` a task for each line, in batches; and the sources of payloads.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use leasehold::client::TaskView;
use leasehold::model::{
    MAX_PAYLOAD, NewTask, Payload, QueueName, RetryPolicy, TaskId, TaskState, ValidationError,
};
use leasehold::{EnqueueBuilder, EnqueueResult, Error, Leasehold};
use serde::Serialize;

use super::wait::{exit_code, until_finished};
use crate::cli::{AddArgs, PayloadSource};
use crate::commands::context::{CommandContext, CommandResult, with_code};
use crate::exit;
use crate::output::{Failure, Progress, count, state_line, suggestion, visible};

#[derive(Serialize)]
struct AddedView {
    id: TaskId,
    queue: String,
    duplicate: bool,
    /// Current state of a duplicate.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<TaskState>,
}

pub(in crate::commands) async fn add(context: &CommandContext, mut args: AddArgs) -> CommandResult {
    if let Some(file) = args.lines.take() {
        return add_lines(context, &args, &file).await;
    }
    let payload = read(args.payload.take().or(args.positional.take()))?;
    let leasehold = context.open_persistent("a task").await?;
    note_new_queue(context, &leasehold, &args.queue).await?;
    let EnqueueResult { id, duplicate, .. } = task_builder(&leasehold, &args, payload).await?;
    if let Some(timeout) = args.wait {
        if !context.printer.json {
            let written = context.printer.write(format!("{id}\n").as_bytes());
            with_code(written.map_err(Failure::after_success), exit::SUCCESS)?;
        }
        let finished = until_finished(context, &leasehold, &[id], timeout).await?;
        let code = exit_code(&finished);
        for task in &finished {
            with_code(context.printer.success(&TaskView::from(task), |_| state_line(task)), code)?;
        }
        return Ok(code);
    }
    let state = if duplicate { Some(leasehold.tasks()?.get(id).await?.state) } else { None };
    let view = AddedView { id, queue: args.queue.to_string(), duplicate, state };
    let written = context.printer.unrepeatable(&view, |style| {
        let word = state.map(|state| format!("  {} {state}", style.warning("duplicate")));
        format!("{id}{}\n", word.unwrap_or_default())
    });
    let code = match state {
        Some(TaskState::Failed | TaskState::Aborted) => exit::DUPLICATE_FAILED,
        _ => exit::SUCCESS,
    };
    with_code(written, code)
}

/// Says that the task is the first of its queue, if a queue with a similar name exists.
async fn note_new_queue(
    context: &CommandContext,
    leasehold: &Leasehold,
    queue: &QueueName,
) -> Result<(), Failure> {
    if let Err(Error::UnknownQueue { known, .. }) = leasehold.tasks()?.queue(queue).await {
        let similar = suggestion(queue.as_str(), known.iter().map(ToString::to_string));
        if !similar.is_empty() {
            context.printer.message(format_args!("this is the first task of queue '{queue}'{similar}"));
        }
    }
    Ok(())
}

fn task_builder(leasehold: &Leasehold, args: &AddArgs, payload: Payload) -> EnqueueBuilder {
    let mut task = leasehold.enqueue_to(args.queue.clone(), payload);
    task = task.retries(args.retry.apply_to(RetryPolicy::default()));
    if let Some(key) = &args.key {
        task = task.key(key.clone());
    }
    if let Some(reuse) = args.reuse {
        task = task.reuse(reuse.into());
    }
    if let Some(time) = args.run_at {
        task = task.run_at(time);
    }
    if let Some(delay) = args.delay {
        task = task.delay(delay);
    }
    if let Some(timeout) = args.timeout {
        task = task.timeout(timeout.as_duration());
    }
    if let Some(priority) = args.priority {
        task = task.priority(priority.get());
    }
    match &args.lock {
        Some(lock) => task.lock(lock.clone()),
        None => task,
    }
}

/// Maximum number of tasks per batch; a batch is added as a whole or not at all.
const BATCH: usize = 500;
/// Approximate maximum number of payload bytes per batch.
const BATCH_BYTES: usize = 1 << 20;

#[derive(Serialize)]
struct AddedMany {
    queue: String,
    added: u64,
}

async fn add_lines(context: &CommandContext, args: &AddArgs, file: &Path) -> CommandResult {
    let (name, from): (_, Box<dyn BufRead>) = if file == Path::new("-") {
        ("stdin".to_owned(), Box::new(BufReader::new(io::stdin())))
    } else {
        (display_path(file), Box::new(BufReader::new(open(file)?)))
    };
    let leasehold = context.open_persistent("a task").await?;
    note_new_queue(context, &leasehold, &args.queue).await?;
    let mut lines = Lines { name, from, number: 0 };
    let mut progress = Progress::new(context.printer, "adding", None);
    let mut added = 0;
    loop {
        let with_count = |failure: Failure| match added {
            0 => failure,
            added => failure.hint(format!("{} before this line were added", count(added, "task"))),
        };
        let batch = batch(&mut lines, &leasehold, args).map_err(with_count)?;
        if batch.is_empty() {
            break;
        }
        let more = batch.len() as u64;
        for result in leasehold.enqueue_new(batch).await.map_err(|error| with_count(error.into()))? {
            result?;
        }
        added += more;
        progress.add(more);
    }
    drop(progress);
    let view = AddedMany { queue: args.queue.to_string(), added };
    context.printer.unrepeatable(&view, |_| format!("added {} to '{}'\n", count(added, "task"), args.queue))
}

fn batch(lines: &mut Lines, leasehold: &Leasehold, args: &AddArgs) -> Result<Vec<NewTask>, Failure> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while batch.len() < BATCH
        && bytes < BATCH_BYTES
        && let Some(payload) = lines.next()?
    {
        bytes += payload.as_str().len();
        batch.push(task_builder(leasehold, args, payload).into_new_task()?);
    }
    Ok(batch)
}

/// Payloads, one per line.
struct Lines {
    name: String,
    from: Box<dyn BufRead>,
    number: u64,
}

impl Lines {
    /// Returns the next payload; empty lines are skipped.
    fn next(&mut self) -> Result<Option<Payload>, Failure> {
        loop {
            let mut line = Vec::new();
            let mut bounded = (&mut self.from).take(MAX_PAYLOAD as u64 + 2);
            let read =
                bounded.read_until(b'\n', &mut line).map_err(|error| unreadable(&self.name, &error))?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            let text = line.trim_ascii();
            if !text.is_empty() {
                let at = |error: ValidationError| {
                    error.map_message(|wrong| format!("{}, line {}: {wrong}", self.name, self.number))
                };
                return Ok(Some(parse(text).map_err(at)?));
            }
        }
    }
}

pub(in crate::commands) fn read(source: Option<PayloadSource>) -> Result<Payload, Failure> {
    match source {
        None => Ok(Payload::default()),
        Some(PayloadSource::Inline(payload)) => Ok(payload),
        Some(PayloadSource::Stdin) => read_all("stdin", io::stdin().lock()),
        Some(PayloadSource::File(path)) => read_all(&display_path(&path), open(&path)?),
    }
}

pub(super) fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| unreadable(&display_path(path), &error))
}

fn unreadable(name: &str, error: &io::Error) -> Failure {
    Failure::usage(format!("{name} cannot be read: {error}"))
}

fn display_path(path: &Path) -> String {
    format!("file '{}'", visible(&path.to_string_lossy()))
}

/// Reads the whole input, up to the maximum size of a payload.
fn read_all(name: &str, from: impl Read) -> Result<Payload, Failure> {
    let mut text = Vec::new();
    let limit = MAX_PAYLOAD as u64 + 1;
    from.take(limit).read_to_end(&mut text).map_err(|error| unreadable(name, &error))?;
    parse(&text).map_err(|error| error.map_message(|wrong| format!("{name}: {wrong}")).into())
}

/// Parses a payload. Surrounding whitespace is dropped: the same payload has the same fingerprint
/// whatever its source.
pub(super) fn parse(text: &[u8]) -> Result<Payload, ValidationError> {
    if text.len() > MAX_PAYLOAD {
        return Err(ValidationError::other(format!(
            "the payload is too large; {MAX_PAYLOAD} bytes is the most"
        )));
    }
    let text = str::from_utf8(text).map_err(|_| ValidationError::other("the payload is not UTF-8"))?;
    Payload::new(text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_lines_are_skipped_and_an_invalid_one_is_named() {
        let text = &b"1\n\n  \"two\"  \n{\n"[..];
        let mut lines = Lines { name: "stdin".to_owned(), from: Box::new(text), number: 0 };
        assert_eq!(lines.next().unwrap().unwrap().as_str(), "1");
        assert_eq!(lines.next().unwrap().unwrap().as_str(), "\"two\"");
        assert!(lines.next().unwrap_err().message().starts_with("stdin, line 4: the payload is not JSON"));
        assert!(lines.next().unwrap().is_none());
    }
}
