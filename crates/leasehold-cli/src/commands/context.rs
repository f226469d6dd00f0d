//! What every command needs: its store, its output, a runtime, and open files.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use leasehold::store::{Cursor, Page};
use leasehold::{Error, Leasehold};
use nix::errno::Errno;

use crate::config::StoreChoice;
use crate::connect::{Deadline, connect, open};
use crate::exit;
use crate::output::{Failure, Printer};
use crate::run::WaitTimeout;

/// Result of a command: an exit code, or a failure to print.
pub(super) type CommandResult = Result<i32, Failure>;

pub(super) struct CommandContext {
    pub(super) store: StoreChoice,
    pub(super) printer: Printer,
}

impl CommandContext {
    /// Opens the store. Called after all checks that do not need it.
    pub(super) async fn open(&self) -> Result<Leasehold, Failure> {
        Ok(open(&self.store.url).await?)
    }

    /// Opens the store, and retries until the deadline if the store cannot be reached.
    pub(super) async fn open_within(&self, deadline: Deadline) -> Result<Leasehold, Failure> {
        let on_first_error = |error: &Error| self.printer.message(format_args!("{error}; trying again"));
        Ok(connect(&self.store.url, deadline, on_first_error).await?)
    }

    /// Opens the store; fails if its contents do not outlive this process.
    pub(super) async fn open_persistent(&self, what: &str) -> Result<Leasehold, Failure> {
        self.open_persistent_within(what, Deadline::new(WaitTimeout::FailFast)).await
    }

    /// Opens the store as [`Self::open_persistent`] does, and retries until the deadline if the store
    /// cannot be reached.
    pub(super) async fn open_persistent_within(
        &self,
        what: &str,
        deadline: Deadline,
    ) -> Result<Leasehold, Failure> {
        persistent(self.open_within(deadline).await?, what)
    }

    /// Returns the command line prefix that makes this program use the same store.
    pub(super) fn program(&self) -> String {
        self.store.program()
    }
}

/// Minimum time between two readings of a list that is shown repeatedly.
const MIN_REPEAT: Duration = Duration::from_millis(100);

impl CommandContext {
    /// Prints a list once or, if the caller wants to watch it, repeatedly. While the store cannot be reached,
    /// the error is printed and the list is tried again.
    pub(super) async fn print_list(
        &self,
        leasehold: &Leasehold,
        print: impl AsyncFn(Printer) -> CommandResult,
    ) -> CommandResult {
        let Some(interval) = self.printer.repeats() else { return print(self.printer).await };
        let interval = interval.max(MIN_REPEAT).max(leasehold.capabilities().poll);
        loop {
            match print(self.printer.fitted()).await {
                Err(failure) if failure.exit == exit::UNAVAILABLE => failure.print(self.printer.json),
                Err(failure) => return Err(failure),
                Ok(_) => {}
            }
            tokio::time::sleep(interval).await;
        }
    }
}

/// Fails if the contents of the store do not outlive this process.
pub(super) fn persistent(leasehold: Leasehold, what: &str) -> Result<Leasehold, Failure> {
    if leasehold.capabilities().persistent {
        return Ok(leasehold);
    }
    let message = format!("{what} in the store {} would end with this command", leasehold.url());
    Err(Failure::config(message).hint("use a persistent store, such as sqlite:"))
}

/// Reads page after page, until more than `limit` items are found. `read` receives the position after
/// which the page begins.
pub(super) async fn collect_pages<T>(
    limit: usize,
    mut read: impl AsyncFnMut(Option<Cursor>) -> Result<Page<T>, Error>,
) -> Result<Vec<T>, Error> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = read(after).await?;
        found.extend(page.items);
        after = page.next;
        if after.is_none() || found.len() > limit {
            return Ok(found);
        }
    }
}

/// Applies the change to each id. A failure is printed and does not stop the remaining changes. Returns
/// the results, and the exit code: that of the first failure.
pub(super) async fn change_each<I, T>(
    context: &CommandContext,
    ids: &[I],
    change: impl AsyncFn(&I) -> Result<T, Failure>,
) -> (Vec<T>, i32) {
    let (mut changed, mut failed) = (Vec::new(), None);
    for id in ids {
        match change(id).await {
            Ok(result) => changed.push(result),
            Err(failure) => {
                failure.print(context.printer.json);
                failed.get_or_insert(failure.exit);
            }
        }
    }
    (changed, failed.unwrap_or(exit::SUCCESS))
}

/// Returns the exit code that states the result of a command whose output was written. The reader need not read
/// it: with a closed pipe the exit code is the same.
pub(super) fn with_code(written: CommandResult, code: i32) -> CommandResult {
    match written {
        Err(failure) if !failure.is_closed_reader() => Err(failure),
        Ok(_) | Err(_) => Ok(code),
    }
}

pub(super) fn block_on(work: impl Future<Output = CommandResult>) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Failure::internal)?.block_on(work)
}

/// Number of files that a command opens at most before it can report an error of its own: without
/// them the runtime and the libraries below it panic.
const FILES: usize = 32;

/// Fails if this process may not open the files that every command needs.
pub(super) fn check_open_files() -> Result<(), Failure> {
    let mut opened = Vec::with_capacity(FILES);
    for _ in 0..FILES {
        match io::stderr().as_fd().try_clone_to_owned() {
            Ok(file) => opened.push(file),
            Err(error) if is_limit(&error) => {
                let free = opened.len();
                drop(opened);
                let message = format!("this process may open only {free} more files, and needs {FILES}");
                return Err(Failure::new(exit::CONFIG, "TOO_FEW_FILES", message)
                    .hint("raise the limit, such as with: ulimit -n 256"));
            }
            // Without stderr the test cannot be made, and no error could be printed.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

fn is_limit(error: &io::Error) -> bool {
    [Errno::EMFILE, Errno::ENFILE].iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}
