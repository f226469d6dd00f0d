//! The start of a keeper: this program once more, under another name, with its link to the worker as stdin.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::unistd::dup2_stdin;

use super::launch::NAME;
use super::order::Order;
use super::watch::Watch;
use crate::exit;
use crate::run::keeper::take_another_name;
use crate::run::say::say;
use crate::run::stub::{Image, Stub};
use crate::run::terminal::Terminal;
use crate::run::{signals, sys, tree};

/// What to do if this process was started as a keeper: `lease-keeper FILE COMMAND ARGUMENTS…`. Gives its exit code.
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

fn begin(file: &Path, command: &[OsString]) -> io::Result<i32> {
    take_another_name();
    signals::start_clean();
    tree::adopt_orphans();
    let link = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let order = Order::read(&link)?;
    let Some(image) = Image::new(command, file) else {
        return Err(io::Error::other("the command contains a NUL byte"));
    };
    let (payload, feed) = io::pipe()?;
    dup2_stdin(&payload)?;
    drop(payload);
    let (stub, link) = Stub::fork(&image, &Terminal::none(), link)?;
    signals::ignore_in_keeper();
    // Only the command has the payload's pipe now: when it ends, so does the feeding.
    dup2_stdin(File::open("/dev/null")?)?;
    let Order { valid_until, timing, variables, payload } = order;
    let watch = Watch::new(stub, link, valid_until, timing)?;
    feed_on(feed, payload);
    // Not back to our caller: nothing that would still be tidied up is worth the time.
    sys::exit_now(watch.watch(&variables))
}

/// On a thread of its own: a command need not read all of it, or any. Begun after the fork, which wants one thread.
fn feed_on(mut feed: PipeWriter, payload: Vec<u8>) {
    std::thread::spawn(move || {
        // A command that does not want it is free not to.
        let _ = feed.write_all(&payload);
    });
}
