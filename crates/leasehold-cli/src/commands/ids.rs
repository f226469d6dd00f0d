//! Resolution of short ids to the tasks, executions and workers that they denote.

use leasehold::model::{ExecutionId, Task, TaskId, WorkerId};
use leasehold::store::ListTasks;
use leasehold::{Error, Tasks};

use super::context::collect_pages;
use crate::cli::{ExecutionIdArg, IdArg, PartOfId, TaskIdArg, WorkerIdArg};
use crate::exit;
use crate::output::Failure;

/// Number of tasks, newest first, among which a short id is searched.
const SEARCHED: usize = 10_000;
/// Minimum number of characters if there are more tasks than that: a shorter part might also denote a
/// task that is not searched.
const SAFE_CHARS: usize = 8;
const PAGE: u32 = 1000;
/// Maximum number of candidates in a message.
const NAMED: usize = 5;

pub(super) async fn task(tasks: &Tasks, id: &TaskIdArg) -> Result<TaskId, Failure> {
    match id {
        IdArg::Full(id) => Ok(*id),
        IdArg::Part(part) => find(tasks, part, "task", |task| Some(task.id.to_string())).await,
    }
}

pub(super) async fn execution(tasks: &Tasks, id: &ExecutionIdArg) -> Result<ExecutionId, Failure> {
    match id {
        IdArg::Full(id) => Ok(*id),
        IdArg::Part(part) => {
            let name = |task: &Task| ExecutionId::of_task(task).map(|id| id.to_string());
            find(tasks, part, "execution", name).await.map(ExecutionId::from)
        }
    }
}

pub(super) async fn worker(tasks: &Tasks, id: &WorkerIdArg) -> Result<WorkerId, Failure> {
    let part = match id {
        IdArg::Full(id) => return Ok(*id),
        IdArg::Part(part) => part,
    };
    let workers = tasks.workers().await?.into_iter().map(|worker| worker.info.id);
    let found: Vec<_> = workers.filter(|id| part.matches(&id.to_string())).collect();
    match found[..] {
        [id] => Ok(id),
        [] => Err(unknown(part, "worker").hint("a worker that is not listed needs its whole id")),
        _ => Err(ambiguous(part, "worker", found.iter().map(ToString::to_string))),
    }
}

/// Returns the one task whose id matches. `name` returns the id to show; `None` if it is not searched for.
async fn find(
    tasks: &Tasks,
    part: &PartOfId,
    what: &str,
    name: impl Fn(&Task) -> Option<String>,
) -> Result<TaskId, Failure> {
    let mut query = ListTasks::default().archived(true).brief(true).limit(PAGE);
    let all = collect_pages(SEARCHED, async |after| -> Result<_, Error> {
        query.after = after;
        tasks.list(&query).await
    })
    .await?;
    let more = all.len() > SEARCHED;
    if more && part.as_str().len() < SAFE_CHARS {
        let message = format!("'{}' is too short an id for a store with this many tasks", part.as_str());
        return Err(Failure::usage(message).hint(format!("write {SAFE_CHARS} characters, or the whole id")));
    }
    let is_match = |task: &&Task| name(task).is_some() && part.matches(&task.id.to_string());
    let found: Vec<_> = all.iter().filter(is_match).collect();
    match found[..] {
        [task] => Ok(task.id),
        [] if more => Err(unknown(part, what).hint(format!(
            "only the newest {SEARCHED} tasks are searched; write the whole id of an older one"
        ))),
        [] => Err(unknown(part, what).hint(format!("list them with: leasehold {what}s list"))),
        _ => Err(ambiguous(part, what, found.iter().filter_map(|task| name(task)))),
    }
}

fn unknown(part: &PartOfId, what: &str) -> Failure {
    let code = if what == "execution" { "UNKNOWN_EXECUTION" } else { "UNKNOWN_TASK" };
    let message = format!("there is no {what} whose id begins or ends with '{}'", part.as_str());
    Failure::new(exit::FAILURE, code, message)
}

fn ambiguous(part: &PartOfId, what: &str, ids: impl Iterator<Item = String>) -> Failure {
    let ids: Vec<_> = ids.collect();
    let more = match ids.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!("'{}' is not unique: {} {what}s match", part.as_str(), ids.len());
    let named = ids.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    Failure::usage(message).hint(format!("write more characters: {named}{more}"))
}
