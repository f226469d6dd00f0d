//! Handle of a monitor in its worker.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use leasehold::BootInstant;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::pool::MonitorPool;
use crate::exit;
use crate::run::link::{Exited, Message, MessageReader, Received};

/// Handle of a monitor. Dropping it before the end ends the command.
pub(crate) struct MonitorHandle {
    link: tokio::net::UnixStream,
    reader: MessageReader,
    /// Parent of the monitor.
    watchdog: Pid,
    command: Option<Pid>,
    ended: Option<Exited>,
    pool: Arc<MonitorPool>,
}

/// How an attempt ended. No process of the command is alive any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptEnd {
    /// The command exited with this code, by itself or after a request to stop.
    Code(i32),
    /// The command was killed by this signal, which another process sent.
    Signal(i32),
    /// The command was ended because the worker requested it or because its lease was about to end.
    Stopped,
    /// The system refused to execute the command.
    NotRun,
    /// The monitor was killed, and every process of the command with it.
    Killed,
}

impl MonitorHandle {
    pub(super) fn new(link: UnixStream, watchdog: Pid, pool: Arc<MonitorPool>) -> io::Result<Self> {
        link.set_nonblocking(true)?;
        let link = tokio::net::UnixStream::from_std(link)?;
        Ok(Self { link, reader: MessageReader::default(), watchdog, command: None, ended: None, pool })
    }

    /// Reports a renewal: the lease is valid until this moment.
    pub(crate) fn renewed(&self, until: BootInstant) {
        self.send(Message::Valid(until));
    }

    /// Asks the command to stop.
    pub(crate) fn stop(&self) {
        self.send(Message::Signal(Signal::SIGTERM as i32));
    }

    /// Kills the command immediately.
    pub(crate) fn kill(&self) {
        self.send(Message::Signal(Signal::SIGKILL as i32));
    }

    /// Sends a message to the monitor. Messages are few, so they always fit into the socket buffer;
    /// if the monitor has exited they are not needed.
    fn send(&self, message: Message) {
        // Bypasses the runtime, which would refuse the write until it has seen the link become
        // writable.
        let _ = nix::unistd::write(&self.link, &message.to_bytes());
    }

    /// Writes all of the bytes to the monitor.
    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.link.writable().await?;
            match self.link.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for the end of the attempt. Cancel safe: the future may be dropped and the method
    /// called again.
    pub(crate) async fn end(&mut self) -> AttemptEnd {
        let mut watchdog_alive = true;
        loop {
            match self.reader.receive(|buffer| self.link.try_read(buffer)) {
                // WATCHDOG exits after MONITOR has sent all of its messages, so no further message
                // can arrive.
                Received::Nothing if !watchdog_alive => return self.end_killed().await,
                Received::Nothing => tokio::select! {
                    biased;
                    _ = self.link.readable() => {}
                    () = self.pool.wait_for_exit(self.watchdog) => watchdog_alive = false,
                },
                Received::Message(Message::Started(pid)) => self.command = Some(Pid::from_raw(pid)),
                Received::Message(Message::Exited(ended)) => self.ended = Some(ended),
                Received::Message(Message::Done(code)) => return self.attempt_end(code),
                Received::Message(_) => {}
                Received::Gone => return self.end_killed().await,
            }
        }
    }

    async fn end_killed(&self) -> AttemptEnd {
        self.pool.end_attempt(self.watchdog, self.command).await;
        AttemptEnd::Killed
    }

    fn attempt_end(&self, code: i32) -> AttemptEnd {
        match (code, self.ended) {
            (exit::NOT_RUNNABLE, _) => AttemptEnd::NotRun,
            // The command was asked to stop and succeeded.
            (_, Some(Exited::Code(exit::SUCCESS))) => AttemptEnd::Code(exit::SUCCESS),
            (exit::SUCCESS, Some(Exited::Code(code))) => AttemptEnd::Code(code),
            (exit::SUCCESS, Some(Exited::Signal(signal))) => AttemptEnd::Signal(signal),
            _ => AttemptEnd::Stopped,
        }
    }
}
