//! `tasks work`, up to the plan (the rest is in `crate::work`), and `tasks progress`.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileTypeExt;

use leasehold::model::Progress;
use leasehold::store::{Capabilities, StoreUrl};

use crate::cli::{ProgressArgs, WorkArgs};
use crate::commands::context::{CommandResult, block_on};
use crate::config::{StoreChoice, containment, lease_ttl};
use crate::exit;
use crate::output::{Failure, Printer};
use crate::run::{Launcher, PROGRESS};
use crate::work::{StopCondition, WorkPlan};

pub(in crate::commands) fn work(args: WorkArgs, store: &StoreChoice, printer: Printer) -> CommandResult {
    StoreUrl::parse(&store.url)?;
    let stop_when = match (args.once, args.until_empty, args.until_done) {
        (true, ..) => StopCondition::OneTask,
        (_, true, _) => StopCondition::QueuesEmpty,
        (.., true) => StopCondition::QueuesDone,
        _ => StopCondition::Never,
    };
    let store_url = store.absolute();
    let chosen = lease_ttl(args.ttl)?;
    let ttl = chosen.unwrap_or(Capabilities::TTL);
    let contain = containment(args.contain)?;
    let launcher =
        Launcher::new(args.command, store_url.clone(), ttl.as_duration(), args.kill_after, contain)?;
    let mut queues = args.queues;
    queues.sort_unstable();
    queues.dedup();
    let plan = WorkPlan {
        store_url,
        queues,
        slots: args.slots,
        ttl: chosen,
        kill_after: args.kill_after,
        grace: args.grace,
        max_runtime: args.max_runtime,
        keep_output: args.keep_output,
        prefixes: args.prefix.choice(),
        recover_every: args.recover_every,
        stop_when,
        launcher,
    };
    block_on(crate::work::work(plan, printer, None))
}

/// Maximum length of the note, in bytes, so that the line is written atomically.
const NOTE_BYTES: usize = 500;

pub(in crate::commands) fn progress(args: ProgressArgs) -> CommandResult {
    let Some(path) = std::env::var_os(PROGRESS) else {
        return Err(Failure::usage(format!(
            "{PROGRESS} is not set: this process is not the command of a task"
        ))
        .hint(
            "use it in a command that a worker runs: tasks work, workflows run, or a workflow of a server",
        ));
    };
    let mut progress = Progress { done: args.done, of: args.of, note: None };
    if let Some(note) = args.note {
        progress = progress.note(&note[..note.floor_char_boundary(NOTE_BYTES)]);
    }
    let line = serde_json::to_string(&progress).map_err(Failure::internal)? + "\n";
    let message = "the attempt that this command belongs to has ended";
    let attempt_ended = |_| Failure::new(exit::LEASE_LOST, "LEASE_LOST", message);
    let mut pipe = File::options().write(true).open(path).map_err(attempt_ended)?;
    // The pid in the path may have been reused; a file that is not a pipe must not be written to.
    if !pipe.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        return Err(Failure::usage(format!("{PROGRESS} is not a pipe to the worker")));
    }
    pipe.write_all(line.as_bytes()).map_err(attempt_ended)?;
    Ok(exit::SUCCESS)
}
