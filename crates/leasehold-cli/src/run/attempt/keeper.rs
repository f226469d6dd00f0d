//! A keeper, as its worker sees it.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use leasehold::Moment;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::crew::Crew;
use crate::exit;
use crate::run::link::{Exited, Inbox, Message, Received};

/// When it is dropped before the end, the command is ended.
pub(crate) struct Keeper {
    link: tokio::net::UnixStream,
    inbox: Inbox,
    /// Its parent.
    watchdog: Pid,
    command: Option<Pid>,
    ended: Option<Exited>,
    crew: Arc<Crew>,
}

/// How an attempt ended. Nothing of the command is alive any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself, or after it was asked to stop: with this code.
    Code(i32),
    /// By this signal of somebody else.
    Signal(i32),
    /// It was ended: because the worker wanted it, or because its lease was about to end.
    Stopped,
    /// The system would not execute it.
    NotRun,
    /// Its keeper was killed, and everything with it.
    Killed,
}

impl Keeper {
    pub(super) fn new(link: UnixStream, watchdog: Pid, crew: Arc<Crew>) -> io::Result<Self> {
        link.set_nonblocking(true)?;
        let link = tokio::net::UnixStream::from_std(link)?;
        Ok(Self { link, inbox: Inbox::default(), watchdog, command: None, ended: None, crew })
    }

    /// The lease is valid until then.
    pub(crate) fn renewed(&self, until: Moment) {
        self.tell(Message::Valid(until));
    }

    /// The command is to stop.
    pub(crate) fn stop(&self) {
        self.tell(Message::Signal(Signal::SIGTERM as i32));
    }

    /// The command is to be killed, now.
    pub(crate) fn kill(&self) {
        self.tell(Message::Signal(Signal::SIGKILL as i32));
    }

    /// There are few messages, so they always fit; and if the keeper is gone nobody misses them.
    fn tell(&self, message: Message) {
        // Not through the runtime: it would refuse until it has seen that the link can be written to.
        let _ = nix::unistd::write(&self.link, &message.to_bytes());
    }

    /// All of it.
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

    /// The end. May be dropped and called again.
    pub(crate) async fn end(&mut self) -> End {
        let mut watched = true;
        loop {
            match self.inbox.receive(|buffer| self.link.try_read(buffer)) {
                // WATCHDOG ends after KEEPER has said all that it has to say, so without it there is nothing to come.
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
            // Asked to stop, it came to a good end.
            (_, Some(Exited::Code(exit::SUCCESS))) => End::Code(exit::SUCCESS),
            (exit::SUCCESS, Some(Exited::Code(code))) => End::Code(code),
            (exit::SUCCESS, Some(Exited::Signal(signal))) => End::Signal(signal),
            _ => End::Stopped,
        }
    }
}
