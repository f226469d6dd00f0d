//! Handle of a keeper in its worker.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use leasehold::BootInstant;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::crew::Crew;
use crate::exit;
use crate::run::link::{Exited, Inbox, Message, Received};

/// Handle of a keeper. Dropping it before the end ends the command.
pub(crate) struct Keeper {
    link: tokio::net::UnixStream,
    inbox: Inbox,
    /// Parent of the keeper.
    watchdog: Pid,
    command: Option<Pid>,
    ended: Option<Exited>,
    crew: Arc<Crew>,
}

/// How an attempt ended. No process of the command is alive any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The command exited with this code, by itself or after a request to stop.
    Code(i32),
    /// The command was killed by this signal, which another process sent.
    Signal(i32),
    /// The command was ended because the worker requested it or because its lease was about to end.
    Stopped,
    /// The system refused to execute the command.
    NotRun,
    /// The keeper was killed, and every process of the command with it.
    Killed,
}

impl Keeper {
    pub(super) fn new(link: UnixStream, watchdog: Pid, crew: Arc<Crew>) -> io::Result<Self> {
        link.set_nonblocking(true)?;
        let link = tokio::net::UnixStream::from_std(link)?;
        Ok(Self { link, inbox: Inbox::default(), watchdog, command: None, ended: None, crew })
    }

    /// Reports a renewal: the lease is valid until this moment.
    pub(crate) fn renewed(&self, until: BootInstant) {
        self.tell(Message::Valid(until));
    }

    /// Asks the command to stop.
    pub(crate) fn stop(&self) {
        self.tell(Message::Signal(Signal::SIGTERM as i32));
    }

    /// Kills the command immediately.
    pub(crate) fn kill(&self) {
        self.tell(Message::Signal(Signal::SIGKILL as i32));
    }

    /// Sends a message to the keeper. Messages are few, so they always fit into the socket buffer;
    /// if the keeper has exited they are not needed.
    fn tell(&self, message: Message) {
        // Bypasses the runtime, which would refuse the write until it has seen the link become
        // writable.
        let _ = nix::unistd::write(&self.link, &message.to_bytes());
    }

    /// Writes all of the bytes to the keeper.
    pub(super) async fn give(&self, mut bytes: &[u8]) -> io::Result<()> {
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
    pub(crate) async fn end(&mut self) -> End {
        let mut watched = true;
        loop {
            match self.inbox.receive(|buffer| self.link.try_read(buffer)) {
                // WATCHDOG exits after KEEPER has sent all of its messages, so no further message
                // can arrive.
                Received::Nothing if !watched => return self.killed().await,
                Received::Nothing => tokio::select! {
                    biased;
                    _ = self.link.readable() => {}
                    () = self.crew.death_of(self.watchdog) => watched = false,
                },
                Received::Message(Message::Started(pid)) => self.command = Some(Pid::from_raw(pid)),
                Received::Message(Message::Exited(how)) => self.ended = Some(how),
                Received::Message(Message::Done(code)) => return self.how(code),
                Received::Message(_) => {}
                Received::Gone => return self.killed().await,
            }
        }
    }

    async fn killed(&self) -> End {
        self.crew.end_attempt(self.watchdog, self.command).await;
        End::Killed
    }

    fn how(&self, code: i32) -> End {
        match (code, self.ended) {
            (exit::NOT_RUNNABLE, _) => End::NotRun,
            // The command was asked to stop and succeeded.
            (_, Some(Exited::Code(exit::SUCCESS))) => End::Code(exit::SUCCESS),
            (exit::SUCCESS, Some(Exited::Code(code))) => End::Code(code),
            (exit::SUCCESS, Some(Exited::Signal(signal))) => End::Signal(signal),
            _ => End::Stopped,
        }
    }
}
