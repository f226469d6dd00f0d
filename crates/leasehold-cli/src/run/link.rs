//! Messages between SUPERVISOR and MONITOR: sixteen bytes each, over a socket pair. End of file means
//! that the peer has exited. A worker and the monitors of its attempts use the same protocol.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use leasehold::BootInstant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    /// From MONITOR: the lock is held and the command, with this pid, is about to start.
    Started(i32),
    /// From MONITOR: the command was stopped by this signal.
    Stopped(i32),
    /// From either: the command has been asked to stop; the exit code states why. The receiver must
    /// not ask again: many programs treat a second request as "exit immediately".
    Ending(i32),
    /// From MONITOR: the command has ended.
    Exited(Exited),
    /// From MONITOR: no process of the command is left and the lock is released; exit with this code.
    Done(i32),
    /// From SUPERVISOR: this signal arrived while SUPERVISOR did not know of a running command.
    /// From a worker: the command is to stop, immediately if the signal is SIGKILL.
    Signal(i32),
    /// From a worker: new expiry time of the lease.
    Valid(BootInstant),
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exited {
    Code(i32),
    Signal(i32),
}

impl Exited {
    /// Returns the exit code that a shell would report.
    pub(super) fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => crate::exit::SIGNAL_BASE + signal,
        }
    }
}

pub(super) const SIZE: usize = 16;

impl Message {
    pub(super) fn to_bytes(self) -> [u8; SIZE] {
        let (tag, value) = match self {
            Self::Started(pid) => (1, number(pid)),
            Self::Stopped(signal) => (2, number(signal)),
            Self::Ending(code) => (3, number(code)),
            Self::Exited(Exited::Code(code)) => (4, number(code)),
            Self::Exited(Exited::Signal(signal)) => (5, number(signal)),
            Self::Done(code) => (6, number(code)),
            Self::Signal(signal) => (7, number(signal)),
            Self::Valid(until) => (8, until.as_micros()),
        };
        let mut bytes = [0; SIZE];
        bytes[0] = tag;
        bytes[8..].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    /// Decodes a message; `None` for an unknown tag.
    pub(super) fn from_bytes(bytes: [u8; SIZE]) -> Option<Self> {
        let value = i32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        Some(match bytes[0] {
            1 => Self::Started(value),
            2 => Self::Stopped(value),
            3 => Self::Ending(value),
            4 => Self::Exited(Exited::Code(value)),
            5 => Self::Exited(Exited::Signal(value)),
            6 => Self::Done(value),
            7 => Self::Signal(value),
            8 => {
                let [_, _, _, _, _, _, _, _, until @ ..] = bytes;
                Self::Valid(BootInstant::from_micros(u64::from_le_bytes(until)))
            }
            _ => return None,
        })
    }
}

fn number(value: i32) -> u64 {
    u64::from(value.cast_unsigned())
}

/// Assembles messages from the fragments in which they arrive.
#[derive(Debug, Default)]
pub(super) struct MessageReader {
    bytes: [u8; SIZE],
    filled: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    Message(Message),
    /// No complete message is available yet.
    Nothing,
    /// The peer has exited.
    Exited,
}

impl MessageReader {
    /// Reads at most one message; `read` must not block.
    pub(super) fn receive(&mut self, mut read: impl FnMut(&mut [u8]) -> std::io::Result<usize>) -> Received {
        loop {
            match read(&mut self.bytes[self.filled..]) {
                Ok(0) => return Received::Exited,
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Received::Nothing,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Received::Exited,
            }
            if self.filled == SIZE {
                self.filled = 0;
                if let Some(message) = Message::from_bytes(self.bytes) {
                    return Received::Message(message);
                }
            }
        }
    }
}

/// Sends a message over a link that is registered with a runtime. Messages are few, so they always fit
/// into the socket buffer; if the peer has exited they are not needed.
pub(super) fn send(link: impl AsFd, message: Message) {
    // Bypasses the runtime, which would refuse the write until it has seen the link become writable.
    let _ = nix::unistd::write(link, &message.to_bytes());
}

/// Non-blocking end of the socket pair: the peer may be stopped.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: UnixStream,
    reader: MessageReader,
}

impl Link {
    pub(super) fn new(stream: UnixStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, reader: MessageReader::default() })
    }

    pub(super) fn receive(&mut self) -> Received {
        self.reader.receive(|buffer| (&self.stream).read(buffer))
    }

    /// Sends a message. Errors are ignored: the peer has exited, or acts on the expiry time without
    /// the message.
    pub(super) fn send(&self, message: Message) {
        let _ = (&self.stream).write(&message.to_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_arrives_as_it_was_sent() {
        let (one, two) = UnixStream::pair().unwrap();
        let (one, mut two) = (Link::new(one).unwrap(), Link::new(two).unwrap());
        let all = [
            Message::Started(4711),
            Message::Stopped(20),
            Message::Ending(79),
            Message::Exited(Exited::Code(255)),
            Message::Exited(Exited::Signal(9)),
            Message::Done(-1),
            Message::Signal(15),
            Message::Valid(BootInstant::from_micros(1 << 50)),
        ];
        for message in all {
            one.send(message);
        }
        for message in all {
            assert_eq!(two.receive(), Received::Message(message));
        }
        assert_eq!(two.receive(), Received::Nothing);
        drop(one);
        assert_eq!(two.receive(), Received::Exited);
    }

    #[test]
    fn a_fragmented_message_is_assembled() {
        let bytes = Message::Started(7).to_bytes();
        let mut left = bytes.chunks(5);
        let mut reader = MessageReader::default();
        let received = reader.receive(|buffer| {
            let piece = left.next().unwrap();
            buffer[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        });
        assert_eq!(received, Received::Message(Message::Started(7)));
    }
}
