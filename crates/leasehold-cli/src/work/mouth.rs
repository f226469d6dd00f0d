//! Passing on what commands write, by a thread that may wait for a slow reader while nobody else does.

use std::io::Write;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread::JoinHandle;

use tokio::sync::mpsc;

/// So many pieces may wait; then the commands do.
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
                // A reader that has gone does not keep the work from going on.
                gone = gone || to.write_all(&piece).and_then(|()| to.flush()).is_err();
            }
        });
        Self { pieces: Mutex::new(Some(pieces)), thread: Mutex::new(Some(thread)) }
    }

    /// Says it, after everything that was said before.
    pub(super) async fn say(&self, piece: Vec<u8>) {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(pieces) = pieces
            && !piece.is_empty()
        {
            // The thread ends only after this.
            let _ = pieces.send(piece).await;
        }
    }

    /// Waits until everything has been said.
    pub(super) fn close(&self) {
        drop(self.pieces.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}
