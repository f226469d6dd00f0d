//! Calls to the server: each runs on the store's own thread, so that a caller that blocks its runtime
//! delays no other caller, and is retried until the server responds or the deadline has passed.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connection::{Connection, HttpError, Request};
use super::error::ErrorResponse;
use super::in_doubt::{InDoubtRequests, OpKind};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{LeaseId, LockName, LockOp, Outcome, ValidationError};
use crate::store::BootInstant;
use crate::store::background::Background;
use crate::store::backoff::{ExponentialBackoff, jittered};
use crate::store::in_order::InOrder;
use crate::store::protocol::{Hello, LARGEST_BODY};
use crate::store::repeat::Repeat;

const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of attempts of one call if the server is busy or stopping.
const MAX_ATTEMPTS: u32 = 5;
/// Delays between attempts if the server cannot be reached.
const RETRY_BACKOFF: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(10), Duration::from_millis(640));
/// Maximum delay before the next attempt, whatever `Retry-After` the server sends.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

/// Client of one server, for callers on any thread.
#[derive(Debug)]
pub(super) struct HttpClient {
    pub(super) background: Background,
    pub(super) connection: Arc<Connection>,
    in_order: InOrder<LeaseId, InDoubtRequests>,
}

struct Call {
    /// Path after the common prefix of all calls.
    path: String,
    body: Bytes,
    /// Whether the call may be resent once it may have begun.
    repeat: Repeat,
    kind: OpKind,
}

impl HttpClient {
    pub(super) fn new(background: Background, connection: Arc<Connection>) -> Self {
        Self { background, connection, in_order: InOrder::default() }
    }

    /// Requests the description of the server, which proves that it is a leasehold server.
    pub(super) async fn hello(&self) -> Result<Hello> {
        let connection = self.connection.clone();
        let request = async move { connection.send_once("capabilities", None, CALL_TIMEOUT).await };
        self.read(&self.background.run(request).await?)
    }

    /// Makes a call whose order does not matter.
    pub(super) async fn call<A: Serialize, R: DeserializeOwned>(
        &self,
        path: String,
        arguments: &A,
        repeat: impl Into<Repeat>,
    ) -> Result<R> {
        let call = Call { path, body: write(arguments)?, repeat: repeat.into(), kind: OpKind::Other };
        let connection = self.connection.clone();
        let body = self
            .background
            .run(async move { connection.call(&call, &mut InDoubtRequests::default()).await })
            .await?;
        self.read(&body)
    }

    /// Applies an operation after all earlier ones for its lease id, also those that were dropped.
    pub(super) async fn apply(&self, path: String, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let body = write(&(name, op))?;
        let call = Call { path, body, repeat: op.into(), kind: OpKind::of(op) };
        // Enters at once, not when the thread runs the call: later calls must queue behind this one.
        let turn = op.lease_id().map(|lease| self.in_order.enter(lease));
        let connection = self.connection.clone();
        let called = self.background.run(async move {
            match turn {
                Some(turn) => {
                    let mut in_doubt = turn.await;
                    connection.call(&call, &mut in_doubt).await
                }
                None => connection.call(&call, &mut InDoubtRequests::default()).await,
            }
        });
        // A call that must wait for an earlier request continues without its caller.
        let timed_out = |_| Err(HttpError::TimedOut.explain(self.connection.display_url()));
        self.read(&tokio::time::timeout(CALL_TIMEOUT, called).await.unwrap_or_else(timed_out)?)
    }

    fn read<R: DeserializeOwned>(&self, body: &[u8]) -> Result<R> {
        serde_json::from_slice(body).map_err(|error| {
            let message =
                format!("the response of the server {} cannot be read", self.connection.display_url());
            Error::store(StoreErrorKind::Broken, message, "use the same version of leasehold on both sides")
                .because(error)
        })
    }
}

impl Connection {
    /// Sends a request that is neither repeated nor in order with others.
    pub(super) async fn send_once(
        &self,
        path: &str,
        body: Option<Bytes>,
        timeout: Duration,
    ) -> Result<Bytes> {
        let request = Request { path, body, start_deadline: None, supersedes: false };
        let reply = self.exchange(request, BootInstant::now().plus(timeout)).await;
        let reply = reply.map_err(|error| error.explain(self.display_url()))?;
        let reply = ErrorResponse::of(reply, self.display_url(), self.clocks.has_reading());
        reply.map(|reply| reply.body).map_err(|response| response.error)
    }

    /// Makes a call. Adds the requests that may still begin later to `in_doubt`.
    async fn call(&self, call: &Call, in_doubt: &mut InDoubtRequests) -> Result<Bytes> {
        let mut deadline = BootInstant::now().plus(CALL_TIMEOUT);
        let mut attempts = 0;
        loop {
            let start_deadline = self.clocks.start_deadline(deadline);
            in_doubt.remove_expired(BootInstant::now());
            if let Some(instant) = in_doubt.send_after(call.kind, &start_deadline.servers) {
                tokio::time::sleep(instant.after(BootInstant::now())).await;
                deadline = BootInstant::now().plus(CALL_TIMEOUT);
                continue;
            }
            attempts += 1;
            let request = Request {
                path: &call.path,
                body: Some(call.body.clone()),
                start_deadline: Some(&start_deadline.header),
                supersedes: !in_doubt.is_empty(),
            };
            let (error, delay) = match self.exchange(request, deadline).await {
                Ok(reply) => {
                    if reply.server.is_none() && !matches!(reply.status, 401 | 403 | 429) {
                        // The response of a proxy that may have passed the request on.
                        in_doubt.add(start_deadline.servers, deadline, call.kind);
                    }
                    match ErrorResponse::of(reply, self.display_url(), self.clocks.has_reading()) {
                        Ok(reply) => {
                            if let Some(server) = reply.server {
                                in_doubt.superseded_on(server);
                            }
                            return Ok(reply.body);
                        }
                        Err(response) if call.may_be_resent(&response) => {
                            (response.error, response.retry_delay)
                        }
                        Err(response) => return Err(response.error),
                    }
                }
                Err(error) => {
                    let may_begin = error.may_have_been_sent();
                    if may_begin {
                        in_doubt.add(start_deadline.servers, deadline, call.kind);
                    }
                    let again = error.is_retryable() && (!may_begin || call.repeat == Repeat::Safe);
                    let error = error.explain(self.display_url());
                    if !again {
                        return Err(error);
                    }
                    (error, RETRY_BACKOFF.delay(attempts))
                }
            };
            let delay = jittered(delay.min(MAX_RETRY_DELAY));
            if attempts >= MAX_ATTEMPTS || BootInstant::now().plus(delay) >= deadline {
                return Err(error);
            }
            tracing::debug!(path = call.path, %error, "retrying the call");
            tokio::time::sleep(delay).await;
        }
    }
}

impl Call {
    fn may_be_resent(&self, response: &ErrorResponse) -> bool {
        response.not_begun || (response.retryable && self.repeat == Repeat::Safe)
    }
}

fn write<A: Serialize>(arguments: &A) -> Result<Bytes> {
    let body = serde_json::to_vec(arguments).map_err(|error| {
        Error::store(
            StoreErrorKind::Broken,
            "the arguments of a call cannot be written as JSON",
            "please report this",
        )
        .because(error)
    })?;
    if body.len() > LARGEST_BODY {
        let message = format!("the call has {} bytes; {LARGEST_BODY} is the most", body.len());
        return Err(ValidationError::other(format!("{message}: split it into several calls")).into());
    }
    Ok(Bytes::from(body))
}
