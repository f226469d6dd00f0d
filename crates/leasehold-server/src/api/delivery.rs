//! An answer that gives a lease, and takes it back if nobody gets the answer.
//!
//! A client that is gone knows nothing of its lease, and everybody else would wait for its ttl. So the lease is taken back
//! when the answer is dropped before the connection has taken its bytes. While a request waits, the connection notices a
//! client that hangs up and drops the handler; from then until the bytes are taken, it drops this. What happens to bytes
//! that are on their way nobody here can know: such a lease ends by its time.
//!
//! A lease whose id the client has chosen is never taken back: the client may be asking for it again on another
//! connection already, and what it is given there is the same lease.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use leasehold::Guard;
use serde::Serialize;

/// What is held until the answer is on its way.
pub(crate) struct Delivery {
    guard: Option<Guard>,
    known: bool,
    bytes: Bytes,
}

impl Delivery {
    /// For a lease whose id the client has chosen, and can ask for again.
    pub(crate) fn of_known(guard: Guard) -> Self {
        Self { guard: Some(guard), known: true, bytes: Bytes::new() }
    }

    /// For a lease that the client knows of only by the answer.
    pub(crate) fn of_unknown(guard: Guard) -> Self {
        Self { guard: Some(guard), known: false, bytes: Bytes::new() }
    }

    /// What is held.
    pub(crate) fn guard(&self) -> &Guard {
        self.guard.as_ref().expect("it is there until the answer is on its way")
    }

    /// The answer.
    pub(crate) fn answer(mut self, answer: &impl Serialize) -> Response {
        self.bytes = serde_json::to_vec(answer).unwrap_or_default().into();
        let json = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, json)], Body::new(self)).into_response()
    }
}

impl hyper::body::Body for Delivery {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.guard.take().map(|guard| {
            guard.detach();
            Ok(Frame::data(std::mem::take(&mut self.bytes)))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.guard.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if self.known
            && let Some(guard) = self.guard.take()
        {
            guard.detach();
        }
    }
}
