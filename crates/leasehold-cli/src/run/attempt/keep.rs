//! Start of a keeper: this program again, under another name, with its link to the worker as stdin.
//! The started process forks KEEPER and becomes WATCHDOG.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use nix::unistd::{ForkResult, dup2_stdin, getppid};

use super::launch::NAME;
use super::order::Order;
use super::watch::{Lease, Watch};
use crate::exit;
use crate::run::contain::Prepared;
use crate::run::keeper::take_another_name;
use crate::run::say::say;
use crate::run::stub::{Image, Place, Stub};
use crate::run::sys::Shared;
use crate::run::terminal::Terminal;
use crate::run::watchdog::Watchdog;
use crate::run::{signals, sys, tree};

/// Runs the keeper if this process was started as one: `lease-keeper FILE COMMAND ARGUMENTS…`.
/// Returns its exit code, or `None` if this process is not a keeper.
pub(crate) fn keep(arguments: &[OsString]) -> Option<i32> {
    let [name, file, command @ ..] = arguments else { return None };
    if name != NAME || command.is_empty() {
        return None;
    }
    Some(begin(Path::new(file), command).unwrap_or_else(|error| {
        say!("cannot start the command: {error}");
        exit::INTERNAL
    }))
}

/// Forks KEEPER and becomes WATCHDOG.
fn begin(file: &Path, command: &[OsString]) -> io::Result<i32> {
    let worker = getppid();
    signals::start_clean();
    tree::adopt_orphans();
    let link = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let order = Order::read(&link)?;
    let Some(image) = Image::new(command, file) else {
        return Err(io::Error::other("the command contains a NUL byte"));
    };
    let contained = order.contain.prepare()?;
    let (shared, timing) = (Shared::new()?, order.timing);
    shared.set_valid_until(order.valid_until);
    match sys::fork()? {
        ForkResult::Parent { child: keeper } => {
            // A second open copy of the link would hide the death of KEEPER from the worker.
            drop(link);
            dup2_stdin(File::open("/dev/null")?)?;
            shared.set_keeper(keeper);
            Ok(Watchdog { parent: worker, keeper, shared, timing, contained }.watch())
        }
        ForkResult::Child => {
            let beginning = Beginning { order, image, link, shared, contained };
            let kept = catch_unwind(AssertUnwindSafe(|| beginning.keep()));
            let code = kept.unwrap_or(Ok(exit::INTERNAL)).unwrap_or_else(|error| {
                say!("cannot start the command: {error}");
                exit::INTERNAL
            });
            sys::exit_now(code)
        }
    }
}

/// Initial state of KEEPER.
struct Beginning {
    order: Order,
    image: Image,
    link: UnixStream,
    shared: Shared,
    contained: Prepared,
}

impl Beginning {
    /// Forks the command, and watches it until all of its processes have ended.
    fn keep(self) -> io::Result<i32> {
        let Self { order, image, link, shared, contained } = self;
        take_another_name();
        tree::adopt_orphans();
        let (payload, feed) = io::pipe()?;
        dup2_stdin(&payload)?;
        drop(payload);
        let place = Place { terminal: &Terminal::none(), contained: &contained };
        let (stub, link) = Stub::fork(&image, &place, link)?;
        signals::ignore_in_keeper();
        sys::undo_low_priority(); // The command keeps the inherited priority.
        // Only the command holds the read end of the payload pipe now: when the command ends, the
        // writer thread ends.
        dup2_stdin(File::open("/dev/null")?)?;
        let Order { valid_until, timing, variables, payload, .. } = order;
        let watch = Watch::new(stub, link, Lease { valid_until, timing, shared, contained })?;
        feed_on(feed, payload);
        Ok(watch.watch(&variables))
    }
}

/// Writes the payload to the command on a separate thread, because the command need not read all of
/// it, or any. Started after the fork, which requires a single thread.
fn feed_on(mut feed: PipeWriter, payload: Vec<u8>) {
    std::thread::spawn(move || {
        // The command may ignore its input.
        let _ = feed.write_all(&payload);
    });
}
