//! Output of a command: forwarded line by line, so that lines of several commands do not mix, and
//! captured up to a maximum size.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::events::{Stream, Subject, WorkEvent};
use super::mouth::Mouth;
use super::shop::{Hurry, Shop};
use crate::output::{to_line, visible};

/// Maximum length of a line; a longer line is forwarded in pieces.
const LONGEST_LINE: usize = 64 << 10;
/// Time for which a pipe is still read after the command is dead.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Captured part of an output.
#[derive(Debug)]
pub(super) enum Kept {
    /// At most the first `most` bytes, and whether there were more.
    First { most: usize, bytes: Vec<u8>, more: bool },
    /// At least the last `most` bytes.
    Last { most: usize, bytes: Vec<u8> },
}

impl Kept {
    pub(super) fn first(most: usize) -> Self {
        Self::First { most, bytes: Vec::new(), more: false }
    }

    pub(super) fn last(most: usize) -> Self {
        Self::Last { most, bytes: Vec::new() }
    }

    fn add(&mut self, piece: &[u8]) {
        match self {
            Self::First { most, bytes, more } => {
                let room = *most - bytes.len();
                bytes.extend_from_slice(&piece[..piece.len().min(room)]);
                *more |= piece.len() > room;
            }
            Self::Last { most, bytes } => {
                bytes.extend_from_slice(piece);
                // Not with each piece: moving the whole buffer is expensive.
                if bytes.len() > 2 * *most {
                    bytes.drain(..bytes.len() - *most);
                }
            }
        }
    }
}

/// Reader of one output stream of a command.
pub(super) struct Ear {
    kept: Arc<Mutex<Kept>>,
    /// Whether the command is dead.
    dead: watch::Sender<bool>,
    listening: JoinHandle<()>,
}

impl Ear {
    /// Starts to read.
    pub(super) fn new(from: impl Into<OwnedFd>, to: Teller, kept: Kept) -> io::Result<Self> {
        let from = pipe::Receiver::from_owned_fd(from.into())?;
        let kept = Arc::new(Mutex::new(kept));
        let dead = watch::Sender::new(false);
        let listening = tokio::spawn(pass_on(from, to, kept.clone(), dead.subscribe()));
        Ok(Self { kept, dead, listening })
    }

    /// Returns the captured output once all of it has been forwarded, or once the shutdown
    /// mode is [`Hurry::Kill`]. Must be called when the command is dead.
    pub(super) async fn finish(mut self, shop: &Shop) -> Kept {
        self.dead.send_replace(true);
        tokio::select! {
            _ = &mut self.listening => {}
            () = shop.hurried(Hurry::Kill) => self.listening.abort(),
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *kept, Kept::last(0))
    }
}

/// Form in which lines are forwarded.
#[derive(Debug, Clone)]
pub(super) enum Form {
    /// Unchanged bytes.
    AsItIs,
    /// For a log: with this prefix before each line, and without characters that a terminal would
    /// interpret.
    Prefixed(String),
    /// For programs: as events of this task.
    Json(Subject),
}

/// Writer that forwards the lines of one stream.
pub(super) struct Teller {
    pub(super) to: Arc<Mouth>,
    pub(super) form: Form,
    pub(super) stream: Stream,
}

impl Teller {
    async fn say(&self, lines: Vec<u8>) {
        let written = match &self.form {
            Form::AsItIs => lines,
            Form::Prefixed(prefix) => each_line(&lines, |line| format!("{prefix}{}\n", for_a_log(line))),
            Form::Json(of) => each_line(&lines, |text| {
                let event = WorkEvent::Output { of, stream: self.stream, text };
                to_line(&event).map_or_else(|_| String::new(), |line| line + "\n")
            }),
        };
        self.to.say(written).await;
    }
}

/// Formats each line, without its line ending, by `write`.
fn each_line(lines: &[u8], write: impl Fn(&str) -> String) -> Vec<u8> {
    let mut written = Vec::with_capacity(lines.len());
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        written.extend_from_slice(write(&String::from_utf8_lossy(line)).as_bytes());
    }
    written
}

/// Escapes everything that would move the cursor, hide the prefix, change colours or reverse the
/// text direction.
fn for_a_log(line: &str) -> String {
    line.split('\t').map(visible).collect::<Vec<_>>().join("\t")
}

/// Reads the stream to its end, captures a part of it, and forwards all of it.
async fn pass_on(
    mut from: pipe::Receiver,
    to: Teller,
    kept: Arc<Mutex<Kept>>,
    mut dead: watch::Receiver<bool>,
) {
    let (mut line, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        let read = tokio::select! {
            biased;
            read = from.read(&mut buffer) => read,
            () = silence(&mut dead) => break,
        };
        // A read error counts as the end of the stream.
        let Ok(read @ 1..) = read else { break };
        let piece = &buffer[..read];
        kept.lock().unwrap_or_else(PoisonError::into_inner).add(piece);
        line.extend_from_slice(piece);
        let whole = line.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let whole = if line.len() - whole > LONGEST_LINE { line.len() } else { whole };
        if whole > 0 {
            let rest = line.split_off(whole);
            to.say(std::mem::replace(&mut line, rest)).await;
        }
    }
    to.say(line).await;
}

/// Resolves when the command has been dead for [`LAST_WORDS`]: if the stream has not ended by then,
/// another process holds the pipe too.
async fn silence(dead: &mut watch::Receiver<bool>) {
    let _ = dead.wait_for(|dead| *dead).await;
    sleep(LAST_WORDS).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_bytes_are_kept() {
        let (mut first, mut last) = (Kept::first(5), Kept::last(5));
        for piece in ["abc", "def", "ghi", "jkl"] {
            first.add(piece.as_bytes());
            last.add(piece.as_bytes());
        }
        assert!(matches!(first, Kept::First { bytes, more: true, .. } if bytes == b"abcde"));
        assert!(matches!(last, Kept::Last { bytes, .. } if bytes.ends_with(b"hijkl") && bytes.len() <= 10));
    }

    /// A command can neither hide its prefix nor write lines that look like those of another
    /// command.
    #[test]
    fn a_line_in_a_log_is_harmless() {
        let log = |text: &str| {
            let lines = each_line(text.as_bytes(), |line| format!("deploy: {}\n", for_a_log(line)));
            String::from_utf8(lines).unwrap()
        };
        assert_eq!(log("a\tb\r\n50%\r100%\n"), "deploy: a\tb\ndeploy: 50%\\r100%\n");
        assert_eq!(log("\u{1b}[2K\u{9b}2J\u{202e}x"), "deploy: \\u{1b}[2K\\u{9b}2J\\u{202e}x\n");
    }
}
