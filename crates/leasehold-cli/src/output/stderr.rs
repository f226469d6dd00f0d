//! Messages to stderr. Where a lease depends on it, they do not wait for their reader: a terminal may be stopped, and
//! the reader of a pipe may be slow.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::libc::PIPE_BUF;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::unistd::write;

use super::text::count;
use super::writer::OutputWriter;

/// Maximum time for which a message waits for a reader that is busy, in milliseconds.
const BUSY_READER_MILLIS: u8 = 10;
/// Maximum number of queued messages and log lines.
const MAX_QUEUED: usize = 1024;
/// Maximum time for which the end of the process waits for the reader of queued messages.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// Queue of messages and log lines, if this process has one.
static QUEUE: OnceLock<OutputWriter> = OnceLock::new();

/// Makes a thread of its own write all further messages and log lines of [`write_message`]. From here on this process
/// cannot fork, which requires a single thread.
pub(crate) fn queue_messages() {
    let _ = QUEUE.get_or_init(|| OutputWriter::with_report(io::stderr(), MAX_QUEUED, dropped));
}

fn dropped(number: u64) -> String {
    format!("leasehold: {} dropped: stderr was not read in time\n", count(number, "line"))
}

/// Writes a message or a log line. A process with a queue queues it; any other process waits for the reader of stderr.
pub(crate) fn write_message(text: &[u8]) {
    if text.is_empty() {
        return;
    }
    match QUEUE.get() {
        // The queue is closed when the process is about to end.
        Some(queue) => {
            if !queue.try_write(text.to_vec()) {
                write_if_read(text);
            }
        }
        // If stderr is closed there is no other place to report the error.
        None => _ = io::stderr().write_all(text),
    }
}

/// Closes the queue, and waits until it has been written, for at most [`FINISH_TIMEOUT`].
pub(crate) async fn finish_messages() {
    if let Some(queue) = QUEUE.get() {
        let _ = tokio::time::timeout(FINISH_TIMEOUT, queue.close()).await;
    }
}

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
