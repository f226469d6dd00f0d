//! Event source of MONITOR while it waits for the locks or holds them.

use std::io;
use std::os::unix::net::UnixStream;

use leasehold::client::GuardStatus;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::run::link::{self, Message, MessageReader, Received};
#[cfg(target_os = "linux")]
use crate::run::sys;
use crate::run::timer::Timer;

pub(super) struct Events {
    link: tokio::net::UnixStream,
    reader: MessageReader,
    supervisor_exited: bool,
    children: Signal,
    timer: AsyncTimer,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Supervisor(Message),
    /// SUPERVISOR has exited. Reported once.
    SupervisorExited,
    Child,
    Lease,
    Timer,
}

impl Events {
    pub(super) fn new(link: UnixStream) -> io::Result<Self> {
        link.set_nonblocking(true)?;
        Ok(Self {
            link: tokio::net::UnixStream::from_std(link)?,
            reader: MessageReader::default(),
            supervisor_exited: false,
            children: signal(SignalKind::child())?,
            timer: AsyncTimer::new()?,
        })
    }

    pub(super) async fn next(&mut self, lease: &mut watch::Receiver<GuardStatus>) -> Event {
        tokio::select! {
            biased;
            event = receive(&self.link, &mut self.reader, &mut self.supervisor_exited) => event,
            _ = self.children.recv() => Event::Child,
            _ = lease.changed() => Event::Lease,
            () = self.timer.expired() => Event::Timer,
        }
    }

    /// Waits for the next message of SUPERVISOR, or for its death, and for no other event.
    pub(super) async fn next_message(&mut self) -> Event {
        receive(&self.link, &mut self.reader, &mut self.supervisor_exited).await
    }

    /// Sends a message to SUPERVISOR.
    pub(super) fn send(&self, message: Message) {
        link::send(&self.link, message);
    }

    /// Sets the timer. There is only one: a new time replaces the previous one.
    pub(super) fn set_timer(&self, at: leasehold::BootInstant) -> io::Result<()> {
        self.timer.set(at)
    }
}

/// Reads the next message of SUPERVISOR. Cancel safe: bytes already read are kept in the reader.
async fn receive(link: &tokio::net::UnixStream, reader: &mut MessageReader, exited: &mut bool) -> Event {
    loop {
        if *exited {
            return std::future::pending().await;
        }
        match reader.receive(|buffer| link.try_read(buffer)) {
            Received::Message(message) => return Event::Supervisor(message),
            Received::Exited => {
                *exited = true;
                return Event::SupervisorExited;
            }
            Received::Nothing => drop(link.readable().await),
        }
    }
}

#[cfg(target_os = "linux")]
struct AsyncTimer(tokio::io::unix::AsyncFd<Timer>);

#[cfg(target_os = "linux")]
impl AsyncTimer {
    fn new() -> io::Result<Self> {
        Ok(Self(sys::register_timer(Timer::new()?)?))
    }

    fn set(&self, at: leasehold::BootInstant) -> io::Result<()> {
        self.0.get_ref().set(at)
    }

    async fn expired(&self) {
        match self.0.readable().await {
            Ok(mut ready) => {
                self.0.get_ref().clear();
                ready.clear_ready();
            }
            Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(not(target_os = "linux"))]
struct AsyncTimer(Timer);

#[cfg(not(target_os = "linux"))]
impl AsyncTimer {
    fn new() -> io::Result<Self> {
        Ok(Self(Timer::new()?))
    }

    fn set(&self, at: leasehold::BootInstant) -> io::Result<()> {
        self.0.set(at)
    }

    async fn expired(&self) {
        tokio::time::sleep(self.0.next_poll()).await;
    }
}
