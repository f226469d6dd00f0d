//! Names and ids from the store, as a shell completes them. A store that does not respond at once has none.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::CompletionCandidate;
use leasehold::model::ExecutionId;
use leasehold::store::{ListLocks, ListTasks, local_token_path};
use leasehold::{Error, Leasehold};

use crate::config::{StoreChoice, sqlite_path};

/// Maximum time that a person waits for the candidates.
const TIMEOUT: Duration = Duration::from_millis(800);
/// Maximum number of candidates that are read.
const LIMIT: u32 = 200;
/// Number of characters of a short id.
const ID_CHARS: usize = 8;

pub(crate) fn locks(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, async |leasehold| {
        let prefix = current.to_str().map(str::to_owned);
        let page = leasehold.locks().list(&ListLocks::default().prefix(prefix).limit(LIMIT)).await?;
        Ok(page
            .items
            .into_iter()
            .map(|lock| {
                let state =
                    lock.holder.map_or_else(|| "free".to_owned(), |holder| format!("held by {holder}"));
                (lock.name.to_string(), state)
            })
            .collect())
    })
}

pub(crate) fn queues(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, async |leasehold| {
        let queues = leasehold.tasks()?.queues().await?;
        Ok(queues
            .into_iter()
            .map(|status| (status.queue.to_string(), format!("{} open", status.counts.open())))
            .collect())
    })
}

pub(crate) fn schedules(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, async |leasehold| {
        let schedules = leasehold.schedules()?.list().await?;
        Ok(schedules
            .into_iter()
            .map(|schedule| (schedule.name.to_string(), schedule.cron.to_string()))
            .collect())
    })
}

pub(crate) fn workflows(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, async |leasehold| {
        let workflows = leasehold.workflows()?.list().await?;
        Ok(workflows.into_iter().map(|status| (status.workflow.to_string(), String::new())).collect())
    })
}

pub(crate) fn tasks(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, async |leasehold| {
        let page = leasehold.tasks()?.list(&ListTasks::default().brief(true).limit(LIMIT)).await?;
        Ok(page
            .items
            .iter()
            .map(|task| {
                let id =
                    if task.id.number().is_some() { task.id.short() } else { short(&task.id.to_string()) };
                (id, format!("{} {}", task.queue, task.state))
            })
            .collect())
    })
}

pub(crate) fn executions(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, async |leasehold| {
        let page = leasehold.tasks()?.list(&ListTasks::default().brief(true).limit(LIMIT)).await?;
        let executions = page.items.iter().filter_map(|task| {
            let id = ExecutionId::of_task(task)?;
            Some((
                format!("exec_{}", short(&id.task().to_string())),
                format!("{} {}", task.queue, task.state),
            ))
        });
        Ok(executions.collect())
    })
}

pub(crate) fn workers(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, async |leasehold| {
        let workers = leasehold.tasks()?.workers().await?;
        Ok(workers
            .into_iter()
            .map(|worker| {
                let place = format!("process {} on {}", worker.info.pid, worker.info.host);
                (short(&worker.info.id.to_string()), place)
            })
            .collect())
    })
}

fn short(uuid: &str) -> String {
    let digits = uuid.replace('-', "");
    digits[digits.len().saturating_sub(ID_CHARS)..].to_owned()
}

/// Reads names with a description, and returns those that begin with the typed characters.
fn candidates(
    current: &OsStr,
    read: impl AsyncFnOnce(Leasehold) -> Result<Vec<(String, String)>, Error>,
) -> Vec<CompletionCandidate> {
    let found = open_and_read(read).unwrap_or_default();
    let typed = current.to_string_lossy();
    let matching = found.into_iter().filter(|(name, _)| name.starts_with(&*typed));
    matching
        .map(|(name, help)| CompletionCandidate::new(name).help((!help.is_empty()).then(|| help.into())))
        .collect()
}

fn open_and_read<T>(read: impl AsyncFnOnce(Leasehold) -> Result<T, Error>) -> Option<T> {
    let store = StoreChoice::resolve(typed_store().as_deref(), None).ok()?;
    // Completion must not create a store.
    if sqlite_file(&store.url).is_some_and(|file| !file.exists()) {
        return None;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async {
        let reading = async { read(Leasehold::connect(&store.url).await.ok()?).await.ok() };
        tokio::time::timeout(TIMEOUT, reading).await.ok()?
    })
}

/// Returns the file of an SQLite store, also if the URL names none.
fn sqlite_file(url: &str) -> Option<PathBuf> {
    if let Some(path) = sqlite_path(url) {
        return Some(path.into());
    }
    let (scheme, _) = url.split_once(':')?;
    // The default file is in the folder of the local token.
    let token = local_token_path().filter(|_| scheme.eq_ignore_ascii_case("sqlite"))?;
    Some(token.with_file_name("leasehold.db"))
}

/// Returns the store of the command line that is being completed, which the shell passes as arguments.
fn typed_store() -> Option<String> {
    let words: Vec<_> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let after = words.windows(2).find(|pair| pair[0] == "--store").map(|pair| pair[1].clone());
    after.or_else(|| words.iter().find_map(|word| word.strip_prefix("--store=").map(str::to_owned)))
}
