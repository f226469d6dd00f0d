//! What a command needs of the system before it can begin.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::output::Failure;

/// A command opens no more files than this before it can report an error of its own: the runtime and the libraries below
/// it panic without them.
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
            // Without stderr nothing can be tried, and nothing could be said.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

fn is_limit(error: &io::Error) -> bool {
    [Errno::EMFILE, Errno::ENFILE].iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}
