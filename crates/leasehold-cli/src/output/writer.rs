//! Writer of one stream of this process, on a thread of its own: only this thread waits for a slow reader.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

pub(crate) struct OutputWriter {
    pieces: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
    /// Closed when the thread has ended.
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

#[cfg(test)]
mod tests {
    use std::io;
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
}
