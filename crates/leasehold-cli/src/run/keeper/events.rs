//! What may happen while KEEPER waits or holds.

use std::io;
use std::os::unix::net::UnixStream;

use leasehold::client::Health;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::run::alarm::Alarm;
use crate::run::link::{Inbox, Message, Received};
#[cfg(target_os = "linux")]
use crate::run::sys;

/// Where it all comes in.
pub(super) struct Events {
    link: tokio::net::UnixStream,
    inbox: Inbox,
    front_gone: bool,
    children: Signal,
    alarm: AsyncAlarm,
}

/// What has happened.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// FRONT says something.
    Front(Message),
    /// FRONT is dead. Said once.
    FrontGone,
    /// A child has news.
    Child,
    /// The lease has news.
    Lease,
    /// The moment that the alarm was set to.
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

    /// The next thing that happens; `lease` is none once there is nothing more to be heard of it.
    pub(super) async fn next(&mut self, lease: Option<&mut watch::Receiver<Health>>) -> Event {
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

    /// What FRONT says, and nothing else.
    pub(super) async fn front_says(&mut self) -> Event {
        front(&self.link, &mut self.inbox, &mut self.front_gone).await
    }

    /// Tells FRONT. There are few messages, so they always fit; and if FRONT is gone nobody misses them.
    pub(super) fn tell(&self, message: Message) {
        // Not through the runtime: it would refuse until it has seen that the link can be written to.
        let _ = nix::unistd::write(&self.link, &message.to_bytes());
    }

    /// Sets the alarm, the only one.
    pub(super) fn wake_at(&self, at: leasehold::Moment) -> io::Result<()> {
        self.alarm.set(at)
    }
}

/// May be dropped at any time: what has been read is in the inbox.
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

    fn set(&self, at: leasehold::Moment) -> io::Result<()> {
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

    fn set(&self, at: leasehold::Moment) -> io::Result<()> {
        self.0.set(at)
    }

    async fn rings(&self) {
        tokio::time::sleep(self.0.next_look()).await;
    }
}
