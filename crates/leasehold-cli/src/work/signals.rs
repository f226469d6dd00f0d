//! The signals that ask a worker or a server to end.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::run::is_ignored;

/// What asks this process to end.
pub(crate) struct Signals {
    heard: Vec<(i32, Signal)>,
}

impl Signals {
    /// What is ignored stays ignored: `nohup` and shells ask for that.
    pub(crate) fn listen() -> io::Result<Self> {
        let wanted = [nix::libc::SIGINT, nix::libc::SIGTERM, nix::libc::SIGHUP];
        let wanted = wanted.into_iter().filter(|number| !is_ignored(*number));
        let heard = wanted.map(|number| Ok((number, signal(SignalKind::from_raw(number))?)));
        Ok(Self { heard: heard.collect::<io::Result<_>>()? })
    }

    pub(crate) async fn next(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            let ready = self
                .heard
                .iter_mut()
                .find_map(|(number, signal)| signal.poll_recv(context).is_ready().then_some(*number));
            ready.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        })
        .await
    }
}
