//! Writer thread for the output of commands: only this thread blocks on a slow reader.

use std::io::Write;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread::JoinHandle;

use tokio::sync::mpsc;

/// Maximum number of queued pieces; beyond it the commands block.
const PIECES: usize = 64;

pub(super) struct Mouth {
    pieces: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Mouth {
    pub(super) fn new(mut to: impl Write + Send + 'static) -> Self {
        let (pieces, mut heard) = mpsc::channel::<Vec<u8>>(PIECES);
        let thread = std::thread::spawn(move || {
            let mut gone = false;
            while let Some(piece) = heard.blocking_recv() {
                // A closed reader must not stop the commands: further output is discarded.
                gone = gone || to.write_all(&piece).and_then(|()| to.flush()).is_err();
            }
        });
        Self { pieces: Mutex::new(Some(pieces)), thread: Mutex::new(Some(thread)) }
    }

    /// Queues a piece of output, after all earlier pieces.
    pub(super) async fn say(&self, piece: Vec<u8>) {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(pieces) = pieces
            && !piece.is_empty()
        {
            // The thread ends only after the sender is dropped, so sending does not fail.
            let _ = pieces.send(piece).await;
        }
    }

    /// Closes the queue and waits until all pieces have been written.
    pub(super) fn close(&self) {
        drop(self.pieces.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}
