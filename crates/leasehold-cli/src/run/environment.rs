//! Environment variables that the command receives, and that a nested `leasehold run` reads.
//!
//! | variable | content |
//! |---|---|
//! | `LEASEHOLD_LOCK` | the lock; with several locks, the first one requested |
//! | `LEASEHOLD_LOCKS` | all locks that are held here, one per line, including those of enclosing runs |
//! | `LEASEHOLD_TOKEN`, `LEASEHOLD_LEASE_ID`, `LEASEHOLD_HOLDER` | of the first lock |
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
    ExecutionId, ExecutionSpec, Holder, LeaseId, LockName, Task, Token, WebhookEvent, WorkflowName,
};

const LOCK: &str = "LEASEHOLD_LOCK";
const LOCKS: &str = "LEASEHOLD_LOCKS";
const TOKEN: &str = "LEASEHOLD_TOKEN";
const LEASE_ID: &str = "LEASEHOLD_LEASE_ID";
const HOLDER: &str = "LEASEHOLD_HOLDER";
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
const LOCK_TOKEN: &str = "LEASEHOLD_LOCK_TOKEN";
const PAYLOAD_FILE: &str = "LEASEHOLD_PAYLOAD_FILE";
pub(crate) const PROGRESS: &str = "LEASEHOLD_PROGRESS";

/// Values for the environment of `leasehold run`, known once the locks are held.
pub(super) struct RunVariables<'a> {
    pub(super) store_url: &'a str,
    /// All locks of this run, in the order requested.
    pub(super) locks: &'a [LockName],
    pub(super) token: Token,
    pub(super) lease_id: LeaseId,
    pub(super) holder: &'a Holder,
}

impl RunVariables<'_> {
    /// Returns the variables as `NAME=value`, each followed by a NUL.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let Some(first) = self.locks.first() else { return Vec::new() };
        let enclosing = EnclosingRun::from_environment(self.store_url);
        let mut locks: Vec<&str> = enclosing.locks.iter().map(String::as_str).collect();
        locks.extend(self.locks.iter().map(LockName::as_str));
        let variables = [
            (LOCK, first.to_string()),
            (LOCKS, locks.join("\n")),
            (TOKEN, self.token.to_string()),
            (LEASE_ID, self.lease_id.to_string()),
            (HOLDER, self.holder.to_string()),
            (STORE, self.store_url.to_owned()),
        ];
        encode(&variables)
    }
}

/// Values for the environment of a task's command, known when the command starts.
pub(super) struct TaskVariables<'a> {
    pub(super) store_url: &'a str,
    pub(super) task: &'a Task,
    /// Token of the task's lock.
    pub(super) lock_token: Option<Token>,
    /// File to which the command writes its progress.
    pub(super) progress_path: Option<String>,
}

impl TaskVariables<'_> {
    /// Returns the variables as `NAME=value`, each followed by a NUL.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let task = self.task;
        let execution = ExecutionId::of_task(task);
        let spec = execution.map(|_| ExecutionSpec::of(task));
        let attempt = spec.as_ref().map_or(task.attempt, |spec| spec.attempt);
        let mut variables = vec![
            (TASK, task.id.to_string()),
            (QUEUE, task.queue.to_string()),
            (ATTEMPT, attempt.to_string()),
            (TOKEN, task.token.to_string()),
            (STORE, self.store_url.to_owned()),
        ];
        variables.extend(execution.map(|id| (EXECUTION, id.to_string())));
        variables.extend(spec.iter().flat_map(webhook_variables));
        variables.extend(WorkflowName::of_queue(&task.queue).map(|name| (WORKFLOW, name.to_string())));
        variables.extend(task.key.as_ref().map(|key| (KEY, key.to_string())));
        variables.extend(self.progress_path.clone().map(|path| (PROGRESS, path)));
        let mut locks = EnclosingRun::from_environment(self.store_url).locks;
        if let Some(lock) = &task.lock {
            locks.push(lock.to_string());
            let holder = execution.map_or_else(|| format!("task {}", task.id), |id| id.to_string());
            variables.extend([(LOCK, lock.to_string()), (HOLDER, holder)]);
            variables.extend(self.lock_token.map(|token| (LOCK_TOKEN, token.to_string())));
        }
        if !locks.is_empty() {
            variables.push((LOCKS, locks.join("\n")));
        }
        encode(&variables)
    }
}

/// Values for the environment of an execution's command, known when the command starts.
pub(super) struct ExecutionVariables<'a> {
    /// Further variables for the command.
    pub(super) inherited: &'a [(String, OsString)],
    pub(super) task: &'a Task,
    pub(super) lock_token: Option<Token>,
    pub(super) payload_file: &'a Path,
    pub(super) progress_path: Option<String>,
}

impl ExecutionVariables<'_> {
    /// Returns the variables as `NAME=value`, each followed by a NUL.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let task = self.task;
        let spec = ExecutionSpec::of(task);
        let mut variables = vec![
            (EXECUTION, ExecutionId::from(task.id).to_string()),
            (ATTEMPT, spec.attempt.to_string()),
            (TOKEN, task.token.to_string()),
        ];
        variables.extend(webhook_variables(&spec));
        variables.extend(WorkflowName::of_queue(&task.queue).map(|name| (WORKFLOW, name.to_string())));
        variables.extend(task.key.as_ref().map(|key| (KEY, key.to_string())));
        variables.extend(self.lock_token.map(|token| (LOCK_TOKEN, token.to_string())));
        variables.extend(self.progress_path.clone().map(|path| (PROGRESS, path)));
        let mut bytes = encode(&variables);
        append(&mut bytes, PAYLOAD_FILE, self.payload_file.as_os_str().as_bytes());
        for (name, value) in self.inherited {
            // A server that was itself started by a webhook must not pass its own webhook variables
            // on.
            let of_webhook = [WEBHOOK_TRIGGER, WEBHOOK_EVENT, WEBHOOK_DELIVERY].contains(&name.as_str());
            if !of_webhook && variables.iter().all(|(ours, _)| ours != name) {
                append(&mut bytes, name, value.as_bytes());
            }
        }
        bytes
    }
}

/// Returns the variables of the webhook that started the execution; empty if no webhook did.
fn webhook_variables(spec: &ExecutionSpec) -> Vec<(&'static str, String)> {
    let Some(WebhookEvent { trigger, event, delivery }) = WebhookEvent::of(&spec.facts) else {
        return Vec::new();
    };
    let event = event.map(|event| (WEBHOOK_EVENT, event.into()));
    let delivery = delivery.map(|delivery| (WEBHOOK_DELIVERY, delivery.into()));
    std::iter::once((WEBHOOK_TRIGGER, trigger.into())).chain(event).chain(delivery).collect()
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
    let ours = [
        LOCK,
        LOCKS,
        TOKEN,
        LEASE_ID,
        HOLDER,
        STORE,
        TASK,
        QUEUE,
        ATTEMPT,
        KEY,
        WORKFLOW,
        EXECUTION,
        WEBHOOK_TRIGGER,
        WEBHOOK_EVENT,
        WEBHOOK_DELIVERY,
        LOCK_TOKEN,
        PAYLOAD_FILE,
        PROGRESS,
    ];
    let variables = std::env::vars_os().filter(|(name, _)| ours.iter().all(|our| name != our));
    let entries = variables.map(|(name, value)| [name, value].join(&OsString::from("=")));
    // No variable can contain a NUL, so none is dropped.
    entries.filter_map(|entry| CString::new(entry.into_vec()).ok()).collect()
}

/// Locks held by the enclosing runs, if this process runs inside another `leasehold run`.
pub(super) struct EnclosingRun {
    locks: Vec<String>,
}

impl EnclosingRun {
    /// Reads the locks of the enclosing runs; only locks of the same store count.
    pub(super) fn from_environment(store_url: &str) -> Self {
        let same_store = std::env::var(STORE).is_ok_and(|store| store == store_url);
        let locks = if same_store { std::env::var(LOCKS).unwrap_or_default() } else { String::new() };
        Self::from_lines(&locks)
    }

    fn from_lines(locks: &str) -> Self {
        Self { locks: locks.lines().map(str::to_owned).collect() }
    }

    /// Returns the first of these locks that an enclosing run holds: waiting for that lock would be
    /// a deadlock with ourselves.
    pub(super) fn holds<'a>(&self, locks: &'a [LockName]) -> Option<&'a LockName> {
        locks.iter().find(|lock| self.locks.iter().any(|held| held == lock.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_an_enclosing_run_is_found() {
        let locks = [LockName::new("b c").unwrap(), LockName::new("d").unwrap()];
        assert_eq!(EnclosingRun::from_lines("a\nb c").holds(&locks), Some(&locks[0]));
        assert_eq!(EnclosingRun::from_lines("a\nb\nc").holds(&locks), None);
        assert_eq!(EnclosingRun::from_lines("").holds(&locks), None);
    }
}
