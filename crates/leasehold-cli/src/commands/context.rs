//! What every command needs: its store, its output, a runtime, and open files.

use std::io;
use std::os::fd::AsFd;

use leasehold::{Error, Leasehold};
use nix::errno::Errno;

use crate::config::StoreChoice;
use crate::connect::{Deadline, connect, open};
use crate::output::{Failure, Printer};
use crate::run::WaitTimeout;

/// Result of a command: an exit code, or a failure to print.
pub(super) type CommandResult = Result<i32, Failure>;

/// Context of a command that needs a store.
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
        let leasehold = self.open_within(deadline).await?;
        if leasehold.capabilities().persistent {
            return Ok(leasehold);
        }
        let message = format!("{what} in the store {} would end with this command", leasehold.url());
        Err(Failure::config(message).hint("use a persistent store, such as sqlite:"))
    }

    /// Returns the URL of the store, including its secrets.
    pub(super) fn store_url(&self) -> &str {
        &self.store.url
    }

    /// Returns the command line prefix that makes this program use the same store.
    pub(super) fn program(&self) -> String {
        self.store.program()
    }
}

/// Runs a command on this thread.
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
                return Err(
                    Failure::too_few_files(message).hint("raise the limit, such as with: ulimit -n 256")
                );
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
