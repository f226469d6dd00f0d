//! Messages to stderr that never wait for their reader: no lease may depend on it. A terminal may be stopped, and
//! the reader of a pipe may be slow.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::libc::PIPE_BUF;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::unistd::write;

/// Maximum time for which a message waits for a reader that is busy, in milliseconds.
const BUSY_READER_MILLIS: u8 = 10;

/// Whether a write to stderr would not block.
pub(crate) fn accepts_output() -> bool {
    accepts(io::stderr().as_fd(), PollTimeout::ZERO)
}

/// Writes a message to stderr, or drops it if stderr is not read. Does not use the lock of [`io::stderr`], which a
/// thread may hold that waits for the reader.
pub(crate) fn write_if_read(text: &[u8]) {
    static NONBLOCKING: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let stderr = io::stderr();
    match NONBLOCKING.get_or_init(|| reopen_nonblocking(stderr.as_fd())) {
        Some(nonblocking) => write_if_accepted(nonblocking.as_fd(), text),
        None => write_if_accepted(stderr.as_fd(), text),
    }
}

/// Opens a pipe or a terminal again for writes that do not block: another process that writes to it could take
/// the space between the check and the write. The flag of stderr itself is shared with these processes. Returns
/// `None` for other files, and if the file cannot be opened.
fn reopen_nonblocking(file: BorrowedFd<'_>) -> Option<OwnedFd> {
    let kind = |stat: FileStat| SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits());
    if !file.is_terminal() && kind(fstat(file).ok()?) != SFlag::S_IFIFO {
        return None;
    }
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    open(path.as_str(), flags, Mode::empty()).ok()
}

/// Whether a write of at most [`PIPE_BUF`] bytes would not block, or does not after at most this time.
fn accepts(to: BorrowedFd<'_>, timeout: PollTimeout) -> bool {
    poll(&mut [PollFd::new(to, PollFlags::POLLOUT)], timeout).is_ok_and(|ready| ready > 0)
}

fn write_if_accepted(to: BorrowedFd<'_>, mut text: &[u8]) {
    while !text.is_empty() && accepts(to, BUSY_READER_MILLIS.into()) {
        match write(to, &text[..text.len().min(PIPE_BUF)]) {
            Ok(written @ 1..) => text = &text[written..],
            Err(Errno::EINTR) => {}
            // Another process took the space, or stderr is closed: there is no other place for the message.
            Ok(0) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_message_that_is_not_read_is_dropped() {
        let (mut from, to) = io::pipe().unwrap();
        write_if_accepted(to.as_fd(), &[b'a'; 2 * PIPE_BUF]);
        let mut read = vec![0; 2 * PIPE_BUF];
        from.read_exact(&mut read).unwrap();
        let mut filled = 0;
        while accepts(to.as_fd(), PollTimeout::ZERO) {
            filled += write(&to, &[b'b'; PIPE_BUF]).unwrap();
        }
        write_if_accepted(to.as_fd(), b"dropped");
        drop(to);
        read.clear();
        from.read_to_end(&mut read).unwrap();
        assert_eq!(read, vec![b'b'; filled]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_write_does_not_block_if_another_process_takes_the_space() {
        let (_from, to) = io::pipe().unwrap();
        let nonblocking = reopen_nonblocking(to.as_fd()).unwrap();
        while accepts(to.as_fd(), PollTimeout::ZERO) {
            write(&to, &[b'b'; PIPE_BUF]).unwrap();
        }
        // As after a check that the pipe accepts output.
        assert_eq!(write(&nonblocking, b"a"), Err(Errno::EAGAIN));
    }

    #[test]
    fn a_file_is_not_opened_again() {
        let file = tempfile::tempfile().unwrap();
        assert!(reopen_nonblocking(file.as_fd()).is_none());
    }
}
