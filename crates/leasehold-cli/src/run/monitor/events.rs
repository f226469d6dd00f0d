//! Event source of MONITOR while it waits for the locks or holds them.

use std::io;
use std::os::unix::net::UnixStream;

use leasehold::client::GuardStatus;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::run::link::{Message, MessageReader, Received};
#[cfg(target_os = "linux")]
use crate::run::sys;
use crate::run::timer::Timer;

/// All event sources of MONITOR.
pub(super) struct Events {
    link: tokio::net::UnixStream,
    reader: MessageReader,
    supervisor_gone: bool,
    children: Signal,
    timer: AsyncTimer,
}

/// Event for MONITOR.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// SUPERVISOR sent a message.
    Supervisor(Message),
    /// SUPERVISOR has exited. Reported once.
    SupervisorGone,
    /// A child changed its state.
    Child,
    /// The status of the lease changed.
    Lease,
    /// The timer expired.
    Timer,
}

impl Events {
    pub(super) fn new(link: UnixStream) -> io::Result<Self> {
        link.set_nonblocking(true)?;
        Ok(Self {
            link: tokio::net::UnixStream::from_std(link)?,
            reader: MessageReader::default(),
            supervisor_gone: false,
            children: signal(SignalKind::child())?,
            timer: AsyncTimer::new()?,
        })
    }

    /// Waits for the next event; `lease` is `None` once the lease can have no further changes.
    pub(super) async fn next(&mut self, lease: Option<&mut watch::Receiver<GuardStatus>>) -> Event {
        let lease = async {
            match lease {
                Some(lease) => drop(lease.changed().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            event = receive(&self.link, &mut self.reader, &mut self.supervisor_gone) => event,
            _ = self.children.recv() => Event::Child,
            () = lease => Event::Lease,
            () = self.timer.expired() => Event::Timer,
        }
    }

    /// Waits for the next message of SUPERVISOR, or for its death, and for no other event.
    pub(super) async fn next_message(&mut self) -> Event {
        receive(&self.link, &mut self.reader, &mut self.supervisor_gone).await
    }

    /// Sends a message to SUPERVISOR. Messages are few, so they always fit into the socket buffer; if
    /// SUPERVISOR has exited they are not needed.
    pub(super) fn send(&self, message: Message) {
        // Bypasses the runtime, which would refuse the write until it has seen the link become
        // writable.
        let _ = nix::unistd::write(&self.link, &message.to_bytes());
    }

    /// Sets the timer. There is only one: a new time replaces the previous one.
    pub(super) fn set_timer(&self, at: leasehold::BootInstant) -> io::Result<()> {
        self.timer.set(at)
    }
}

/// Reads the next message of SUPERVISOR. Cancel safe: bytes already read are kept in the reader.
async fn receive(link: &tokio::net::UnixStream, reader: &mut MessageReader, gone: &mut bool) -> Event {
    loop {
        if *gone {
            return std::future::pending().await;
        }
        match reader.receive(|buffer| link.try_read(buffer)) {
            Received::Message(message) => return Event::Supervisor(message),
            Received::Gone => {
                *gone = true;
                return Event::SupervisorGone;
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
