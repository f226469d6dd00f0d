//! `tasks logs` and `executions logs`: the output of a task's attempts, also while they run.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::client::{AttemptOutput, OutputStream};
use leasehold::model::TaskId;
use serde_json::json;

use crate::cli::{ExecutionIdArg, LogOptions, LogsArgs};
use crate::commands::context::{CommandContext, CommandResult};
use crate::commands::ids;
use crate::exit;
use crate::output::Failure;
use crate::work::escape_line;

/// Interval at which `--follow` reads the output; the poll interval of the store if that is longer. A worker
/// writes it every two seconds.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

pub(in crate::commands) async fn of_task(context: &CommandContext, args: &LogsArgs) -> CommandResult {
    let leasehold = context.open().await?;
    let id = ids::task(&leasehold.tasks()?, &args.id).await?;
    logs(context, &leasehold, id, &args.options).await
}

pub(in crate::commands) async fn of_execution(
    context: &CommandContext,
    id: &ExecutionIdArg,
    options: &LogOptions,
) -> CommandResult {
    let leasehold = context.open().await?;
    let id = ids::execution(&leasehold.tasks()?, id).await?;
    logs(context, &leasehold, id.task(), options).await
}

async fn logs(
    context: &CommandContext,
    leasehold: &Leasehold,
    id: TaskId,
    options: &LogOptions,
) -> CommandResult {
    let (tasks, interval) = (leasehold.tasks()?, FOLLOW_EVERY.max(leasehold.capabilities().poll));
    let mut shown = Shown::default();
    loop {
        // Read before the output: what was written before the end is not missed.
        let is_finished = tasks.get(id).await?.state.is_terminal();
        let output = tasks.output(id).await?;
        let output =
            output.into_iter().filter(|one| options.attempt.is_none_or(|number| one.attempt == number));
        let output: Vec<_> = output.collect();
        if context.printer.json && !options.follow {
            return context.printer.result(&output, |_| String::new());
        }
        if !options.follow && output.is_empty() {
            context.printer.message(nothing(is_finished));
        }
        shown.print(context, &output)?;
        if !options.follow || is_finished {
            return Ok(exit::SUCCESS);
        }
        tokio::time::sleep(interval).await;
    }
}

fn nothing(is_finished: bool) -> &'static str {
    if is_finished {
        "no output was kept: the commands wrote nothing, or it is too old, or their worker keeps none (--keep-output)"
    } else {
        "no output has been kept yet; -f waits for it"
    }
}

/// Position up to which the output has been printed.
#[derive(Default)]
struct Shown {
    /// Token of the last attempt that was printed, and the number of its lines.
    last: Option<(u64, u64)>,
}

impl Shown {
    /// Prints the lines that are new.
    fn print(&mut self, context: &CommandContext, output: &[AttemptOutput]) -> Result<(), Failure> {
        for one in output {
            let token = one.token.get();
            let before = match self.last {
                Some((last, _)) if token < last => continue,
                Some((last, lines)) if token == last => lines,
                _ => {
                    heading(context, one, output.len() > 1 || self.last.is_some());
                    0
                }
            };
            let missed = one.omitted.saturating_sub(before);
            if missed > 0 {
                context.printer.message(format_args!("{missed} earlier lines were not kept"));
            }
            let skip = usize::try_from(before.saturating_sub(one.omitted)).unwrap_or(usize::MAX);
            for line in one.lines.iter().skip(skip) {
                write(context, one, line.stream, &line.text)?;
            }
            self.last = Some((token, one.omitted + one.lines.len() as u64));
        }
        Ok(())
    }
}

/// Tells which attempt follows, if there are several.
fn heading(context: &CommandContext, one: &AttemptOutput, several: bool) {
    if several {
        let since = one.leased_at.map(|at| format!(", {at}")).unwrap_or_default();
        context.printer.message(format_args!("attempt {}{since}:", one.attempt));
    }
}

/// Writes a line to the stream that the command wrote it to. On a terminal, control characters are
/// shown and not interpreted.
fn write(
    context: &CommandContext,
    one: &AttemptOutput,
    stream: OutputStream,
    text: &str,
) -> Result<(), Failure> {
    if context.printer.json {
        return context.printer.event(&json!({ "attempt": one.attempt, "stream": stream, "text": text }));
    }
    let shown = |is_terminal| if is_terminal { escape_line(text) } else { text.to_owned() } + "\n";
    if stream == OutputStream::Stderr {
        let (mut to, text) = (io::stderr(), shown(io::stderr().is_terminal()));
        to.write_all(text.as_bytes()).map_err(Failure::output)
    } else {
        context.printer.write(shown(io::stdout().is_terminal()).as_bytes()).map(drop)
    }
}
