//! Signals that ask a worker or a server to stop.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::run::is_ignored;

/// Subscription to the signals that ask this process to stop.
pub(crate) struct StopSignals {
    signals: Vec<(i32, Signal)>,
}

impl StopSignals {
    /// Starts to listen. Ignored signals stay ignored: `nohup` and shells rely on that.
    pub(crate) fn listen() -> io::Result<Self> {
        let wanted = [nix::libc::SIGINT, nix::libc::SIGTERM, nix::libc::SIGHUP];
        let wanted = wanted.into_iter().filter(|number| !is_ignored(*number));
        let signals = wanted.map(|number| Ok((number, signal(SignalKind::from_raw(number))?)));
        Ok(Self { signals: signals.collect::<io::Result<_>>()? })
    }

    pub(crate) async fn next(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            let ready = self
                .signals
                .iter_mut()
                .find_map(|(number, signal)| signal.poll_recv(context).is_ready().then_some(*number));
            ready.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        })
        .await
    }
}
