//! Progress reports of a command: lines of JSON on a separate pipe.

use std::io::{self, PipeReader};
use std::os::fd::OwnedFd;

use leasehold::model::Progress;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// Maximum length of a line; a longer one is discarded as invalid.
const MAX_LINE: usize = 16 << 10;

pub(super) struct ProgressPipe {
    /// Pipe to the command; `None` once it has ended.
    pipe: Option<pipe::Receiver>,
    text: Vec<u8>,
}

impl ProgressPipe {
    pub(super) fn new(pipe: PipeReader) -> io::Result<Self> {
        let pipe = pipe::Receiver::from_owned_fd(OwnedFd::from(pipe))?;
        Ok(Self { pipe: Some(pipe), text: Vec::new() })
    }

    /// Returns the next report; invalid lines are skipped. Cancel safe.
    pub(super) async fn next(&mut self) -> Progress {
        loop {
            if let Some(progress) = take(&mut self.text) {
                return progress;
            }
            let Some(pipe) = &mut self.pipe else { return std::future::pending().await };
            if !matches!(pipe.read_buf(&mut self.text).await, Ok(1..)) {
                self.pipe = None;
            }
        }
    }
}

/// Consumes whole lines until one of them is a report.
fn take(text: &mut Vec<u8>) -> Option<Progress> {
    while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
        let line: Vec<u8> = text.drain(..=end).collect();
        if let Ok(progress) = serde_json::from_slice(&line) {
            return Some(progress);
        }
    }
    if text.len() > MAX_LINE {
        text.clear();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_lines_are_skipped() {
        let mut text = b"oops\n{\"done\":4,\"of\":10}\n{\"done\":5".to_vec();
        assert_eq!(take(&mut text), Some(Progress::of(4, 10)));
        assert_eq!(take(&mut text), None);
        text.extend_from_slice(b"}\n");
        assert_eq!(take(&mut text).map(|progress| progress.done), Some(5));
    }
}
