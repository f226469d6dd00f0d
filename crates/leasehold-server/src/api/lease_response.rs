//! Response that carries a lease and releases the lease if the response cannot be delivered.
//!
//! A client that has disconnected does not know its lease, and other waiters would wait for its
//! whole TTL. Therefore the lease is released when the response is dropped before the connection
//! has taken its bytes. While a request waits, hyper notices that the client has closed the
//! connection and drops the handler; from then until the bytes are taken, hyper drops this body.
//! The server cannot know whether bytes in flight arrive: such a lease expires by its TTL.
//!
//! A lease whose id the client has chosen is never released here, because the client may already have
//! repeated the request on another connection, where it is granted the same lease.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use leasehold::Guard;
use serde::Serialize;

/// Response body that holds the guard until the connection takes the bytes.
pub(crate) struct LeaseResponse {
    guard: Option<Guard>,
    /// Whether the client chose the lease id and can repeat the request.
    has_client_id: bool,
    bytes: Bytes,
}

impl LeaseResponse {
    pub(crate) fn new(guard: Guard, has_client_id: bool) -> Self {
        Self { guard: Some(guard), has_client_id, bytes: Bytes::new() }
    }

    /// Returns the guard of the lease.
    pub(crate) fn guard(&self) -> &Guard {
        self.guard.as_ref().expect("the guard is present until the body is sent")
    }

    /// Returns the response with this JSON as its body.
    pub(crate) fn with_json(mut self, reply: &impl Serialize) -> Response {
        self.bytes = serde_json::to_vec(reply).unwrap_or_default().into();
        let json = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, json)], Body::new(self)).into_response()
    }
}

impl hyper::body::Body for LeaseResponse {
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

impl Drop for LeaseResponse {
    fn drop(&mut self) {
        if self.has_client_id
            && let Some(guard) = self.guard.take()
        {
            guard.detach();
        }
    }
}
