//! Main function of KEEPER.

use std::os::unix::net::UnixStream;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, setpgid};

use super::events::Events;
use super::hold::Hold;
use super::lease::Lease;
use crate::exit;
use crate::run::link::Message;
use crate::run::say::say;
use crate::run::start::Job;
use crate::run::stub::{Image, Place, Stub};
use crate::run::{signals, sys, tree};

/// Runs KEEPER and returns the code for `_exit`. If the event loop is reached, exits instead of
/// returning.
pub(in crate::run) fn keep(job: &Job<'_>, image: &Image, link: UnixStream) -> i32 {
    // A process group of its own: FRONT interprets the signals that the terminal or the shell sends
    // to its job.
    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    tree::adopt_orphans();
    take_another_name();
    // Fork the command first: the fork requires a single thread, and must be made by a thread that
    // lives as long as this process, because the system ties the parent-death signal to that
    // thread.
    let place = Place { terminal: &job.terminal, contained: &job.contained };
    let begun = Stub::fork(image, &place, link).and_then(|(stub, link)| {
        signals::ignore_in_keeper();
        sys::undo_low_priority(); // The command keeps the inherited priority.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok((stub, link, runtime))
    });
    match begun {
        Ok((stub, link, runtime)) => runtime.block_on(work(job, stub, link)),
        Err(error) => {
            say!("cannot start the command: {error}");
            exit::INTERNAL
        }
    }
}

async fn work(job: &Job<'_>, stub: Stub, link: UnixStream) -> i32 {
    let mut events = match Events::new(link) {
        Ok(events) => events,
        Err(error) => {
            say!("cannot start the command: {error}");
            return exit::INTERNAL;
        }
    };
    let code = match Lease::acquire(job, stub.pid, &mut events).await {
        Ok(lease) => Hold::new(job, stub, lease, &mut events).run().await,
        Err(code) => {
            // The stub waits for a "go" that will not be sent.
            let _ = kill(stub.pid, Signal::SIGKILL);
            let _ = waitpid(stub.pid, None);
            code
        }
    };
    events.tell(Message::Done(code));
    // Exit immediately: any further cleanup would only delay the user's prompt.
    sys::exit_now(code)
}

/// Renames this process, so that a kill of all processes called "leasehold" spares one that can
/// still end the command.
pub(in crate::run) fn take_another_name() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_name(c"lease-keeper");
}
