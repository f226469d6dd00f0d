//! `tasks add --lines`: adds a task for each line, in batches.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use leasehold::Leasehold;
use leasehold::model::{MAX_PAYLOAD, NewTask, Payload, ValidationError};
use serde::Serialize;

use super::add::prepared;
use super::payload::{of_bytes, open, shown, unreadable};
use crate::cli::AddArgs;
use crate::commands::dispatch::{Desk, Done};
use crate::exit;
use crate::output::{Failure, Progress, count};

/// Maximum number of tasks per batch; a batch is added as a whole or not at all.
const BATCH: usize = 500;
/// Approximate maximum number of payload bytes per batch.
const BATCH_BYTES: usize = 1 << 20;

/// Added tasks, as JSON.
#[derive(Serialize)]
struct AddedMany {
    queue: String,
    added: u64,
}

pub(super) async fn add(desk: &Desk, args: &AddArgs, file: &Path) -> Done {
    let (name, from): (_, Box<dyn BufRead>) = if file == Path::new("-") {
        ("stdin".to_owned(), Box::new(BufReader::new(io::stdin())))
    } else {
        (shown(file), Box::new(BufReader::new(open(file)?)))
    };
    let leasehold = desk.open_lasting("a task").await?;
    let mut lines = Lines { name, from, number: 0 };
    let mut progress = Progress::new(desk.printer, "adding", None);
    let mut added = 0;
    loop {
        let so_far = |failure: Failure| match added {
            0 => failure,
            added => failure.hint(format!("{} before it were added, and stay", count(added, "task"))),
        };
        let batch = batch(&mut lines, &leasehold, args).map_err(so_far)?;
        if batch.is_empty() {
            break;
        }
        let more = batch.len() as u64;
        for answer in leasehold.enqueue_new(batch).await.map_err(|error| so_far(error.into()))? {
            answer?;
        }
        added += more;
        progress.add(more);
    }
    drop(progress);
    let view = AddedMany { queue: args.queue.to_string(), added };
    desk.printer.done(&view, |_| format!("added {} to '{}'\n", count(added, "task"), args.queue))?;
    Ok(exit::SUCCESS)
}

fn batch(lines: &mut Lines, leasehold: &Leasehold, args: &AddArgs) -> Result<Vec<NewTask>, Failure> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while batch.len() < BATCH
        && bytes < BATCH_BYTES
        && let Some(payload) = lines.next()?
    {
        bytes += payload.as_str().len();
        batch.push(prepared(leasehold, args, payload).into_new_task()?);
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
                let at = |ValidationError(wrong)| {
                    ValidationError(format!("{}, line {}: {wrong}", self.name, self.number))
                };
                return Ok(Some(of_bytes(text).map_err(at)?));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_lines_are_no_tasks_and_a_bad_one_is_named() {
        let text = &b"1\n\n  \"two\"  \n{\n"[..];
        let mut lines = Lines { name: "stdin".to_owned(), from: Box::new(text), number: 0 };
        assert_eq!(lines.next().unwrap().unwrap().as_str(), "1");
        assert_eq!(lines.next().unwrap().unwrap().as_str(), "\"two\"");
        assert!(lines.next().unwrap_err().message().starts_with("stdin, line 4: the payload is not JSON"));
        assert!(lines.next().unwrap().is_none());
    }
}
