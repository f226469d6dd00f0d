//! What all streams of server-sent events share.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::HeaderName;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response, Sse};
use futures_util::{Stream, StreamExt};
use tokio::time::{Interval, MissedTickBehavior};

/// Maximum time between two messages on a stream, so that neither peer nor a proxy closes the
/// connection as idle.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// Reconnection delay that clients are told to use.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// Returns the response with these messages.
pub(super) fn response(messages: impl Stream<Item = Event> + Send + 'static) -> Response {
    // A proxy that buffers whole responses would never forward this one.
    let unbuffered = [(HeaderName::from_static("x-accel-buffering"), "no")];
    (unbuffered, Sse::new(messages.map(Ok::<_, Infallible>))).into_response()
}

/// Returns the first message of a stream.
pub(super) fn first() -> Event {
    Event::default().retry(RECONNECT_DELAY)
}

/// Returns the interval at which a message is due, also without events.
pub(super) fn heartbeat() -> Interval {
    let mut heartbeat = tokio::time::interval(HEARTBEAT_INTERVAL);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    heartbeat.reset();
    heartbeat
}
