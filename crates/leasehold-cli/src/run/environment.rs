//! Environment variables that the command receives, and that a nested `leasehold run` reads.
//!
//! | variable | content |
//! |---|---|
//! | `LEASEHOLD_LOCK` | the lock; with several locks, the first one requested |
//! | `LEASEHOLD_LOCKS` | all locks that are held here, one per line, including those of enclosing runs |
//! | `LEASEHOLD_TOKEN`, `LEASEHOLD_LEASE_ID`, `LEASEHOLD_HOLDER` | of the first lock |
//! | `LEASEHOLD_WITHIN` | public names of all leases that are held here, including those of enclosing runs |
//! | `LEASEHOLD_STORE` | URL of the store that holds the locks |
//! | `LEASEHOLD_TASK`, `LEASEHOLD_QUEUE`, `LEASEHOLD_ATTEMPT`, `LEASEHOLD_KEY` | of a task, for the command of `tasks work`; `LEASEHOLD_TOKEN` is then the task's |
//! | `LEASEHOLD_WORKFLOW`, `LEASEHOLD_EXECUTION_ID` | of an execution; `LEASEHOLD_ATTEMPT` then counts the attempts of its key |
//! | `LEASEHOLD_WEBHOOK_TRIGGER`, `LEASEHOLD_WEBHOOK_EVENT`, `LEASEHOLD_WEBHOOK_DELIVERY` | of the webhook that started an execution |
//! | `LEASEHOLD_LOCK_TOKEN` | the token of a task's lock |
//! | `LEASEHOLD_PAYLOAD_FILE` | the input of an execution as a file, for the command of a workflow of `leasehold serve` |
//! | `LEASEHOLD_PROGRESS` | file to which the command writes the progress of a task |

use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use leasehold::model::{
    ExecutionId, ExecutionSpec, Lease, LeaseRef, LockName, Task, Token, WebhookEvent, WorkflowName,
};

use super::plan::RunPlan;

const LOCK: &str = "LEASEHOLD_LOCK";
const LOCKS: &str = "LEASEHOLD_LOCKS";
const TOKEN: &str = "LEASEHOLD_TOKEN";
const LEASE_ID: &str = "LEASEHOLD_LEASE_ID";
const HOLDER: &str = "LEASEHOLD_HOLDER";
const WITHIN: &str = "LEASEHOLD_WITHIN";
const STORE: &str = "LEASEHOLD_STORE";
const TASK: &str = "LEASEHOLD_TASK";
const QUEUE: &str = "LEASEHOLD_QUEUE";
const ATTEMPT: &str = "LEASEHOLD_ATTEMPT";
const KEY: &str = "LEASEHOLD_KEY";
const WORKFLOW: &str = "LEASEHOLD_WORKFLOW";
const EXECUTION: &str = "LEASEHOLD_EXECUTION_ID";
const WEBHOOK_TRIGGER: &str = "LEASEHOLD_WEBHOOK_TRIGGER";
const WEBHOOK_EVENT: &str = "LEASEHOLD_WEBHOOK_EVENT";
const WEBHOOK_DELIVERY: &str = "LEASEHOLD_WEBHOOK_DELIVERY";
const OF_WEBHOOK: [&str; 3] = [WEBHOOK_TRIGGER, WEBHOOK_EVENT, WEBHOOK_DELIVERY];
const LOCK_TOKEN: &str = "LEASEHOLD_LOCK_TOKEN";
const PAYLOAD_FILE: &str = "LEASEHOLD_PAYLOAD_FILE";
pub(crate) const PROGRESS: &str = "LEASEHOLD_PROGRESS";

/// Returns the variables for the command of `leasehold run`, which holds these locks, as `NAME=value`,
/// each followed by a NUL. `lease` is the lease on the lock `first`; `held` are all leases.
pub(super) fn run_variables(
    store_url: &str,
    locks: &[LockName],
    first: &LockName,
    lease: &Lease,
    held: &[LeaseRef],
) -> Vec<u8> {
    let mut all = enclosing_locks(store_url);
    all.extend(locks.iter().map(ToString::to_string));
    encode(&[
        (LOCK, first.to_string()),
        (LOCKS, all.join("\n")),
        (TOKEN, lease.token.to_string()),
        (LEASE_ID, lease.request.lease_id.to_string()),
        (HOLDER, lease.request.holder.to_string()),
        (WITHIN, within(&enclosing_leases(store_url), held)),
        (STORE, store_url.to_owned()),
    ])
}

/// Returns the variables for the command of a task, in the form of [`run_variables`].
pub(super) fn task_variables(
    store_url: &str,
    task: &Task,
    lock_token: Option<Token>,
    progress_path: Option<String>,
) -> Vec<u8> {
    let execution = ExecutionId::of_task(task);
    let spec = execution.map(|_| ExecutionSpec::of(task));
    let attempt = spec.as_ref().map_or(task.attempt, |spec| spec.attempt);
    let mut variables = common_variables(task, attempt, spec.as_ref(), progress_path);
    variables.extend([
        (TASK, task.id.to_string()),
        (QUEUE, task.queue.to_string()),
        (STORE, store_url.to_owned()),
    ]);
    variables.extend(execution.map(|id| (EXECUTION, id.to_string())));
    let mut locks = enclosing_locks(store_url);
    if let Some(lock) = &task.lock {
        locks.push(lock.to_string());
        let holder = execution.map_or_else(|| format!("task {}", task.id), |id| id.to_string());
        variables.extend([(LOCK, lock.to_string()), (HOLDER, holder)]);
        variables.extend(lock_token.map(|token| (LOCK_TOKEN, token.to_string())));
    }
    if !locks.is_empty() {
        variables.push((LOCKS, locks.join("\n")));
    }
    let held = within(&enclosing_leases(store_url), &leasehold::client::enclosing_leases());
    if !held.is_empty() {
        variables.push((WITHIN, held));
    }
    encode(&variables)
}

/// Returns the variables for the command of an execution, in the form of [`run_variables`]; `inherited`
/// are further variables for the command.
pub(super) fn execution_variables(
    inherited: &[(String, OsString)],
    task: &Task,
    lock_token: Option<Token>,
    payload_file: &Path,
    progress_path: Option<String>,
) -> Vec<u8> {
    let spec = ExecutionSpec::of(task);
    let mut variables = common_variables(task, spec.attempt, Some(&spec), progress_path);
    variables.push((EXECUTION, ExecutionId::from(task.id).to_string()));
    variables.extend(lock_token.map(|token| (LOCK_TOKEN, token.to_string())));
    let mut bytes = encode(&variables);
    append(&mut bytes, PAYLOAD_FILE, payload_file.as_os_str().as_bytes());
    for (name, value) in inherited {
        // A server that was itself started by a webhook must not pass its own webhook variables on.
        let of_webhook = OF_WEBHOOK.contains(&name.as_str());
        if !of_webhook && variables.iter().all(|(ours, _)| ours != name) {
            append(&mut bytes, name, value.as_bytes());
        }
    }
    bytes
}

/// Returns the variables of both tasks and executions.
fn common_variables(
    task: &Task,
    attempt: u32,
    spec: Option<&ExecutionSpec>,
    progress_path: Option<String>,
) -> Vec<(&'static str, String)> {
    let mut variables = vec![(ATTEMPT, attempt.to_string()), (TOKEN, task.token.to_string())];
    if let Some(webhook) = spec.and_then(|spec| WebhookEvent::of(&spec.metadata)) {
        variables.push((WEBHOOK_TRIGGER, webhook.trigger.into()));
        variables.extend(webhook.event.map(|event| (WEBHOOK_EVENT, event.into())));
        variables.extend(webhook.delivery.map(|delivery| (WEBHOOK_DELIVERY, delivery.into())));
    }
    variables.extend(WorkflowName::of_queue(&task.queue).map(|name| (WORKFLOW, name.to_string())));
    variables.extend(task.key.as_ref().map(|key| (KEY, key.to_string())));
    variables.extend(progress_path.map(|path| (PROGRESS, path)));
    variables
}

fn encode(variables: &[(&str, String)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(512);
    for (name, value) in variables {
        append(&mut bytes, name, value.as_bytes());
    }
    bytes
}

fn append(bytes: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b"=", value, b"\0"] {
        bytes.extend_from_slice(part);
    }
}

/// Returns the variables of this process that the command inherits unchanged.
pub(super) fn inherited() -> Vec<CString> {
    let of_locks = [LOCK, LOCKS, TOKEN, LEASE_ID, HOLDER, WITHIN, STORE, LOCK_TOKEN];
    let of_tasks = [TASK, QUEUE, ATTEMPT, KEY, WORKFLOW, EXECUTION, PAYLOAD_FILE, PROGRESS];
    let ours = [&of_locks[..], &of_tasks, &OF_WEBHOOK].concat();
    let variables = std::env::vars_os().filter(|(name, _)| ours.iter().all(|our| name != our));
    let entries = variables.map(|(name, value)| [name, value].join(&OsString::from("=")));
    // No variable can contain a NUL, so none is dropped.
    entries.filter_map(|entry| CString::new(entry.into_vec()).ok()).collect()
}

/// Returns the first lock of this plan that an enclosing run holds.
pub(super) fn enclosing_lock(plan: &RunPlan) -> Option<&LockName> {
    first_held(&enclosing_locks(&plan.store_url), &plan.locks)
}

/// Returns the locks of this store that enclosing runs hold, if this process runs inside another
/// `leasehold run`.
fn enclosing_locks(store_url: &str) -> Vec<String> {
    let same_store = std::env::var(STORE).is_ok_and(|store| store == store_url);
    names(&if same_store { std::env::var(LOCKS).unwrap_or_default() } else { String::new() })
}

/// Returns the leases of this store that enclosing runs hold. A lease in the variable that is not valid is
/// ignored: it only helps to find deadlocks.
pub(crate) fn enclosing_leases(store_url: &str) -> Vec<LeaseRef> {
    let same_store = std::env::var(STORE).is_ok_and(|store| store == store_url);
    let names = if same_store { std::env::var(WITHIN).unwrap_or_default() } else { String::new() };
    names.split(' ').filter_map(|name| LeaseRef::try_from(name.to_owned()).ok()).collect()
}

fn within(enclosing: &[LeaseRef], held: &[LeaseRef]) -> String {
    let names: Vec<_> = enclosing.iter().chain(held).map(ToString::to_string).collect();
    names.join(" ")
}

fn names(lines: &str) -> Vec<String> {
    lines.lines().map(str::to_owned).collect()
}

/// Returns the first of these locks that is among the held ones.
fn first_held<'a>(held: &[String], locks: &'a [LockName]) -> Option<&'a LockName> {
    locks.iter().find(|lock| held.iter().any(|held| held == lock.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_an_enclosing_run_is_found() {
        let locks = [LockName::new("b c").unwrap(), LockName::new("d").unwrap()];
        assert_eq!(first_held(&names("a\nb c"), &locks), Some(&locks[0]));
        assert_eq!(first_held(&names("a\nb\nc"), &locks), None);
        assert_eq!(first_held(&names(""), &locks), None);
    }
}
