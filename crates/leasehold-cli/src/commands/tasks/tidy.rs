//! `tasks recover` and `tasks purge`.

use std::io::{self, IsTerminal, Write};

use leasehold::model::{FinishedFilter, Recovered, TaskState, format_duration};
use serde::Serialize;

use crate::cli::PurgeArgs;
use crate::commands::dispatch::{Desk, Done};
use crate::exit;
use crate::output::{Failure, Progress, count};

/// Maximum number of tasks per call.
const BATCH: u32 = 500;

/// Recovered tasks, as JSON.
#[derive(Serialize)]
struct RecoveredView {
    returned: u32,
    failed: u32,
    aborted: u32,
    promoted: u32,
}

pub(super) async fn recover(desk: &Desk) -> Done {
    let tasks = desk.open().await?.tasks()?;
    let mut all = Recovered::default();
    loop {
        let found = tasks.recover(BATCH).await?;
        all.returned += found.returned;
        all.failed += found.failed;
        all.aborted += found.aborted;
        all.promoted += found.promoted;
        if found.expired() < BATCH {
            break;
        }
    }
    let Recovered { returned, failed, aborted, promoted } = all;
    let view = RecoveredView { returned, failed, aborted, promoted };
    desk.printer.done(&view, |_| {
        if all == Recovered::default() {
            return "nothing to recover\n".to_owned();
        }
        let leases = count(all.expired().into(), "lease");
        format!(
            "{leases} had run out: {returned} can run again, {failed} failed, {aborted} aborted; \
             {promoted} due tasks added to their queue\n"
        )
    })?;
    Ok(exit::SUCCESS)
}

/// Deleted or archived tasks, as JSON.
#[derive(Serialize)]
struct Cleared {
    #[serde(skip_serializing_if = "Option::is_none")]
    purged: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    archived: Option<u64>,
}

pub(super) async fn purge(desk: &Desk, args: PurgeArgs) -> Done {
    if !args.yes {
        confirm(&args)?;
    }
    let leasehold = desk.open().await?;
    let tasks = leasehold.tasks()?;
    let before = leasehold.now().await?.minus(args.older_than);
    let which = FinishedFilter { queue: args.queue, state: args.state, before, limit: BATCH };
    let mut progress = Progress::new(desk.printer, "clearing", None);
    let mut cleared = 0;
    loop {
        let some = if args.archive { tasks.archive(&which).await? } else { tasks.purge(&which).await? };
        cleared += some;
        progress.add(some);
        if some < u64::from(BATCH) {
            break;
        }
    }
    drop(progress);
    let (purged, archived) = if args.archive { (None, Some(cleared)) } else { (Some(cleared), None) };
    desk.printer.done(&Cleared { purged, archived }, |_| {
        let word = if args.archive { "archived" } else { "deleted" };
        format!("{word} {}\n", count(cleared, "task"))
    })?;
    Ok(exit::SUCCESS)
}

/// Describes the tasks concerned and asks the operator for confirmation.
fn confirm(args: &PurgeArgs) -> Result<(), Failure> {
    let mut stderr = io::stderr();
    if !io::stdin().is_terminal() || !stderr.is_terminal() {
        return Err(Failure::usage("a purge without a terminal to ask on needs --yes"));
    }
    let verb = if args.archive { "Archive" } else { "Delete" };
    let state = args.state.map_or("finished", TaskState::word);
    let queue = args.queue.as_ref().map(|queue| format!(" of queue '{queue}'")).unwrap_or_default();
    let age = format_duration(args.older_than);
    let question = format!("{verb} all {state} tasks{queue} that ended more than {age} ago? [y/N] ");
    stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush()).map_err(Failure::output)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(Failure::internal)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::declined("nothing was changed")),
    }
}
