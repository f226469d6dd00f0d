//! System limits that every command needs.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::output::Failure;

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
