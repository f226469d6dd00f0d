//! `tasks wait`, and the wait of `tasks add --wait`.

use std::time::Duration;

use leasehold::Leasehold;
use leasehold::client::TaskView;
use leasehold::model::{Task, TaskId, TaskState};

use crate::cli::WaitTasksArgs;
use crate::commands::context::{CommandContext, CommandResult, with_code};
use crate::commands::ids;
use crate::connect::Deadline;
use crate::exit;
use crate::output::{Failure, short, state_line};
use crate::run::WaitTimeout;
use crate::wait::{WaitDisplay, WaitState};

/// Interval at which a task is read; the poll interval of the store if that is longer.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(in crate::commands) async fn wait(context: &CommandContext, args: &WaitTasksArgs) -> CommandResult {
    let leasehold = context.open().await?;
    let tasks = leasehold.tasks()?;
    let mut ids = Vec::with_capacity(args.ids.len());
    for id in &args.ids {
        ids.push(ids::task(&tasks, id).await?);
    }
    let timeout = args.timeout.map_or(WaitTimeout::Forever, WaitTimeout::For);
    let finished = until_finished(context, &leasehold, &ids, timeout).await?;
    let views: Vec<_> = finished.iter().map(TaskView::from).collect();
    let written = context.printer.result(&views, |_| finished.iter().map(state_line).collect());
    with_code(written, exit_code(&finished))
}

/// Returns the exit code for finished tasks: that of success if all have succeeded.
pub(super) fn exit_code(finished: &[Task]) -> i32 {
    let all = finished.iter().all(|task| task.state == TaskState::Succeeded);
    if all { exit::SUCCESS } else { exit::FAILURE }
}

/// Waits until the tasks have finished, one after the other, and returns them. Errors of a store that cannot
/// be reached are retried until the timeout.
pub(super) async fn until_finished(
    context: &CommandContext,
    leasehold: &Leasehold,
    ids: &[TaskId],
    timeout: WaitTimeout,
) -> Result<Vec<Task>, Failure> {
    let (tasks, deadline) = (leasehold.tasks()?, Deadline::new(timeout));
    let interval = POLL_INTERVAL.max(leasehold.capabilities().poll);
    let mut display = WaitDisplay::of_command(context.printer);
    let (mut finished, mut failed) = (Vec::with_capacity(ids.len()), 0);
    while let Some(id) = ids.get(finished.len()) {
        let task = match tasks.get(*id).await {
            Ok(task) => task,
            Err(error) => {
                let Some(pause) = deadline.retry_delay(&error, failed) else { return Err(error.into()) };
                failed += 1;
                tokio::time::sleep(pause).await;
                continue;
            }
        };
        failed = 0;
        if task.state.is_terminal() {
            finished.push(task);
            continue;
        }
        let left = match deadline.remaining() {
            WaitTimeout::Forever => interval,
            WaitTimeout::For(left) => left,
            WaitTimeout::FailFast => Duration::ZERO,
        };
        if left.is_zero() {
            let message = format!("task {id} is still {} (waited {})", task.state, short(display.waited()));
            let hint = format!("wait longer with: leasehold tasks wait {id}");
            return Err(Failure::new(exit::NOT_ACQUIRED, "TIMEOUT", message).hint(hint));
        }
        let what = format!("task {id} of '{}', which is {}", task.queue, task.state);
        if display.is_due() || display.is_news(&what) {
            display.show(&WaitState { grant: what.clone(), what, ..WaitState::default() });
        }
        tokio::time::sleep(interval.min(left)).await;
    }
    Ok(finished)
}
