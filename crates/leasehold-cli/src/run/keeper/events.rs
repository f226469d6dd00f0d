//! Event source of KEEPER while it waits for the locks or holds them.

use std::io;
use std::os::unix::net::UnixStream;

use leasehold::client::GuardStatus;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::run::alarm::Alarm;
use crate::run::link::{Inbox, Message, Received};
#[cfg(target_os = "linux")]
use crate::run::sys;

/// All event sources of KEEPER.
pub(super) struct Events {
    link: tokio::net::UnixStream,
    inbox: Inbox,
    front_gone: bool,
    children: Signal,
    alarm: AsyncAlarm,
}

/// Event for KEEPER.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// FRONT sent a message.
    Front(Message),
    /// FRONT has exited. Reported once.
    FrontGone,
    /// A child changed its state.
    Child,
    /// The status of the lease changed.
    Lease,
    /// The alarm expired.
    Alarm,
}

impl Events {
    pub(super) fn new(link: UnixStream) -> io::Result<Self> {
        link.set_nonblocking(true)?;
        Ok(Self {
            link: tokio::net::UnixStream::from_std(link)?,
            inbox: Inbox::default(),
            front_gone: false,
            children: signal(SignalKind::child())?,
            alarm: AsyncAlarm::new()?,
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
            event = front(&self.link, &mut self.inbox, &mut self.front_gone) => event,
            _ = self.children.recv() => Event::Child,
            () = lease => Event::Lease,
            () = self.alarm.rings() => Event::Alarm,
        }
    }

    /// Waits for the next message of FRONT, or for its death, and for no other event.
    pub(super) async fn front_says(&mut self) -> Event {
        front(&self.link, &mut self.inbox, &mut self.front_gone).await
    }

    /// Sends a message to FRONT. Messages are few, so they always fit into the socket buffer; if
    /// FRONT has exited they are not needed.
    pub(super) fn tell(&self, message: Message) {
        // Bypasses the runtime, which would refuse the write until it has seen the link become
        // writable.
        let _ = nix::unistd::write(&self.link, &message.to_bytes());
    }

    /// Sets the alarm. There is only one: a new time replaces the previous one.
    pub(super) fn wake_at(&self, at: leasehold::BootInstant) -> io::Result<()> {
        self.alarm.set(at)
    }
}

/// Reads the next message of FRONT. Cancel safe: bytes already read are kept in the inbox.
async fn front(link: &tokio::net::UnixStream, inbox: &mut Inbox, gone: &mut bool) -> Event {
    loop {
        if *gone {
            return std::future::pending().await;
        }
        match inbox.receive(|buffer| link.try_read(buffer)) {
            Received::Message(message) => return Event::Front(message),
            Received::Gone => {
                *gone = true;
                return Event::FrontGone;
            }
            Received::Nothing => drop(link.readable().await),
        }
    }
}

#[cfg(target_os = "linux")]
struct AsyncAlarm(tokio::io::unix::AsyncFd<Alarm>);

#[cfg(target_os = "linux")]
impl AsyncAlarm {
    fn new() -> io::Result<Self> {
        Ok(Self(sys::watch(Alarm::new()?)?))
    }

    fn set(&self, at: leasehold::BootInstant) -> io::Result<()> {
        self.0.get_ref().set(at)
    }

    async fn rings(&self) {
        match self.0.readable().await {
            Ok(mut ready) => {
                self.0.get_ref().hush();
                ready.clear_ready();
            }
            Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(not(target_os = "linux"))]
struct AsyncAlarm(Alarm);

#[cfg(not(target_os = "linux"))]
impl AsyncAlarm {
    fn new() -> io::Result<Self> {
        Ok(Self(Alarm::new()?))
    }

    fn set(&self, at: leasehold::BootInstant) -> io::Result<()> {
        self.0.set(at)
    }

    async fn rings(&self) {
        tokio::time::sleep(self.0.next_look()).await;
    }
}
