//! What a command tells of how far it has come: lines of JSON on a pipe of their own.

use std::io::{self, PipeReader};
use std::os::fd::OwnedFd;

use leasehold::model::Progress;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// A longer line is nonsense.
const LONGEST_LINE: usize = 16 << 10;

pub(super) struct Reports {
    /// None once it has ended.
    pipe: Option<pipe::Receiver>,
    text: Vec<u8>,
}

impl Reports {
    pub(super) fn new(pipe: PipeReader) -> io::Result<Self> {
        let pipe = pipe::Receiver::from_owned_fd(OwnedFd::from(pipe))?;
        Ok(Self { pipe: Some(pipe), text: Vec::new() })
    }

    /// The next report. What makes no sense is passed over. May be dropped at any time.
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

/// Takes whole lines, until one of them is a report.
fn take(text: &mut Vec<u8>) -> Option<Progress> {
    while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
        let line: Vec<u8> = text.drain(..=end).collect();
        if let Ok(progress) = serde_json::from_slice(&line) {
            return Some(progress);
        }
    }
    if text.len() > LONGEST_LINE {
        text.clear();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_passed_over() {
        let mut text = b"oops\n{\"done\":4,\"of\":10}\n{\"done\":5".to_vec();
        assert_eq!(take(&mut text), Some(Progress::of(4, 10)));
        assert_eq!(take(&mut text), None);
        text.extend_from_slice(b"}\n");
        assert_eq!(take(&mut text).map(|progress| progress.done), Some(5));
    }
}
