//! What KEEPER does from beginning to end.

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

/// Never returns to its caller's caller: the code is for `_exit`.
pub(in crate::run) fn keep(job: &Job<'_>, image: &Image, link: UnixStream) -> i32 {
    // A group of its own: what the terminal or the shell sends to its job is for FRONT to understand.
    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    tree::adopt_orphans();
    take_another_name();
    // The command first: it must be forked while there is one thread, and by the thread that lives as long as we do,
    // because the system ties its parent-death signal to that.
    let place = Place { terminal: &job.terminal, contained: &job.contained };
    let begun = Stub::fork(image, &place, link).and_then(|(stub, link)| {
        signals::ignore_in_keeper();
        sys::undo_low_priority(); // The command keeps what it has inherited.
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
            // It waits for a word that will not come.
            let _ = kill(stub.pid, Signal::SIGKILL);
            let _ = waitpid(stub.pid, None);
            code
        }
    };
    events.tell(Message::Done(code));
    // At once: nothing that would still be tidied up is worth the time that somebody waits for the prompt.
    sys::exit_now(code)
}

/// So that whoever kills all processes called "leasehold" leaves one that can still end the command.
pub(in crate::run) fn take_another_name() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_name(c"lease-keeper");
}
