//! Writers that do not wait for a slow reader: output on a thread of its own, and messages to stderr, whose
//! terminal may be stopped, or whose pipe may not be read.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::libc::PIPE_BUF;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::unistd::write;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::text::count;

/// Maximum time for which a message waits for a reader that is busy, in milliseconds.
const BUSY_READER_MILLIS: u8 = 10;
/// Maximum number of queued messages and log lines.
const MAX_QUEUED_LINES: usize = 1024;
/// Maximum time for which the end of the process waits for the reader of queued messages.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// Queue of messages and log lines, if this process has one.
static QUEUE: OnceLock<OutputWriter> = OnceLock::new();

/// Writer of one stream of this process, on a thread of its own: only this thread waits for a slow reader.
pub(crate) struct OutputWriter {
    pieces: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
    /// Channel that is closed when the thread has ended.
    ended: Mutex<Option<oneshot::Receiver<()>>>,
    /// Number of dropped pieces that the thread has not reported yet.
    dropped: Arc<AtomicU64>,
}

impl OutputWriter {
    /// Maximum number of queued pieces of commands; beyond it the commands block.
    pub(crate) const MAX_QUEUED: usize = 64;

    /// Creates a writer for the output of commands. Dropped pieces are not reported.
    pub(crate) fn new(to: impl Write + Send + 'static) -> Self {
        Self::with_report(to, Self::MAX_QUEUED, |_| String::new())
    }

    /// Creates a writer that queues at most `max` pieces. When it has dropped pieces because the queue was full, it
    /// writes the text that `report` returns for their number, once the pieces before them have been written.
    pub(crate) fn with_report(
        mut to: impl Write + Send + 'static,
        max: usize,
        report: impl Fn(u64) -> String + Send + 'static,
    ) -> Self {
        let (pieces, mut queue) = mpsc::channel::<Vec<u8>>(max);
        let (alive, ended) = oneshot::channel::<()>();
        let dropped = Arc::new(AtomicU64::new(0));
        let unreported = dropped.clone();
        thread::spawn(move || {
            let _alive = alive;
            let (mut closed, mut written) = (false, 0);
            // A closed reader must not stop the commands: further output is discarded.
            let mut put = |piece: &[u8]| {
                closed = closed || to.write_all(piece).and_then(|()| to.flush()).is_err();
            };
            loop {
                let piece = queue.blocking_recv();
                if let Some(piece) = &piece {
                    put(piece.as_slice());
                    written += 1;
                }
                // After `max` further pieces, all those that were queued before a dropped one have been written.
                if queue.is_empty() || written > max {
                    written = 0;
                    let number = unreported.swap(0, Ordering::Relaxed);
                    if number > 0 {
                        put(report(number).as_bytes());
                    }
                }
                if piece.is_none() {
                    return;
                }
            }
        });
        Self { pieces: Mutex::new(Some(pieces)), ended: Mutex::new(Some(ended)), dropped }
    }

    /// Queues a piece of output, after all earlier pieces.
    pub(crate) async fn write(&self, piece: Vec<u8>) {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(pieces) = pieces
            && !piece.is_empty()
        {
            // The thread ends only after the sender is dropped, so sending does not fail.
            let _ = pieces.send(piece).await;
        }
    }

    /// Queues a piece of output, or drops it if the reader is so slow that the queue is full. Returns `false` if the
    /// writer was closed.
    pub(crate) fn try_write(&self, piece: Vec<u8>) -> bool {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = pieces.as_ref() else { return false };
        if let Err(TrySendError::Full(_)) = queue.try_send(piece) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Closes the queue and waits until all pieces have been written.
    pub(crate) async fn close(&self) {
        drop(self.pieces.lock().unwrap_or_else(PoisonError::into_inner).take());
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ended) = ended {
            let _ = ended.await;
        }
    }
}

/// Makes a thread of its own write all further messages and log lines of [`write_message`]. From here on this process
/// cannot fork, which requires a single thread.
pub(crate) fn queue_messages() {
    let _ = QUEUE.get_or_init(|| OutputWriter::with_report(io::stderr(), MAX_QUEUED_LINES, dropped));
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
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Output whose reader waits until the test ends.
    struct Unread {
        began: Sender<()>,
        read: Receiver<()>,
        all: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Unread {
        fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
            let _ = (self.began.send(()), self.read.recv());
            self.all.lock().unwrap().extend_from_slice(piece);
            Ok(piece.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn dropped_pieces_are_reported_after_those_that_were_queued() {
        let ((began, blocked), (reader, read)) = (channel(), channel());
        let all = Arc::new(Mutex::new(Vec::new()));
        let to = Unread { began, read, all: all.clone() };
        let writer = OutputWriter::with_report(to, 2, |number| format!("{number} dropped\n"));
        assert!(writer.try_write(b"1\n".to_vec()));
        blocked.recv().unwrap();
        for piece in ["2\n", "3\n", "4\n", "5\n"] {
            assert!(writer.try_write(piece.into()));
        }
        drop(reader);
        writer.close().await;
        assert_eq!(String::from_utf8_lossy(&all.lock().unwrap()), "1\n2\n3\n2 dropped\n");
        assert!(!writer.try_write(b"6\n".to_vec()), "it is closed");
    }

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
