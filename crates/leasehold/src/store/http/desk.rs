//! Runs calls from any thread on the store's own thread: a caller that blocks its runtime delays no
//! other caller.

use std::sync::Arc;

use hyper::body::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::call::{DEADLINE, Errand};
use super::ghosts::{Ghosts, Kind};
use super::line::Lines;
use super::link::{Letter, Link};
use super::trouble::{Failed, Refusal};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{LockName, LockOp, Outcome, ValidationError};
use crate::store::BootInstant;
use crate::store::background::Background;
use crate::store::protocol::{Hello, LARGEST_BODY};
use crate::store::repeat::Repeat;

#[derive(Debug)]
pub(super) struct Desk {
    pub(super) background: Background,
    pub(super) link: Arc<Link>,
    lines: Lines,
}

impl Desk {
    pub(super) fn new(background: Background, link: Arc<Link>) -> Self {
        Self { background, link, lines: Lines::default() }
    }

    /// Requests the description of the server, which also proves that the address is a leasehold
    /// server.
    pub(super) async fn hello(&self) -> Result<Hello> {
        let link = self.link.clone();
        let asked = self.background.run(async move {
            let letter = Letter { path: "capabilities", body: None, until: None, supersedes: false };
            let deadline = BootInstant::now().plus(std::time::Duration::from_secs(5));
            let reply =
                link.exchange(letter, deadline).await.map_err(|failed| failed.explain(link.place()))?;
            Refusal::of(reply, link.place()).map(|reply| reply.body).map_err(|refusal| refusal.error)
        });
        self.read(&asked.await?)
    }

    /// Makes a call whose order does not matter.
    pub(super) async fn ask<A: Serialize, R: DeserializeOwned>(
        &self,
        path: String,
        arguments: &A,
        repeat: impl Into<Repeat>,
    ) -> Result<R> {
        let errand = Errand { path, body: write(arguments)?, repeat: repeat.into(), kind: Kind::Other };
        let link = self.link.clone();
        let body =
            self.background.run(async move { link.call(&errand, &mut Ghosts::default()).await }).await?;
        self.read(&body)
    }

    /// Applies an operation after all earlier ones for its lease id, even if their callers have
    /// dropped them.
    pub(super) async fn apply(&self, path: String, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let body = write(&(name, op))?;
        let errand = Errand { path, body, repeat: op.into(), kind: Kind::of(op) };
        // Entered at once, not when the thread runs the call: later calls must queue behind this one.
        let turn = op.lease_id().map(|lease| self.lines.enter(lease));
        let link = self.link.clone();
        let called = self.background.run(async move {
            let Some(mut turn) = turn else {
                return link.call(&errand, &mut Ghosts::default()).await;
            };
            let mut ghosts = turn.begin().await;
            let called = link.call(&errand, &mut ghosts).await;
            turn.end(ghosts);
            called
        });
        // A call that must wait for an earlier request continues without its caller.
        let late = |_| Err(Failed::TooLate.explain(self.link.place()));
        self.read(&tokio::time::timeout(DEADLINE, called).await.unwrap_or_else(late)?)
    }

    fn read<R: DeserializeOwned>(&self, body: &[u8]) -> Result<R> {
        serde_json::from_slice(body).map_err(|error| {
            let message = format!("the server {} answered something that makes no sense", self.link.place());
            Error::store(StoreErrorKind::Broken, message, "use the same version of leasehold on both sides")
                .because(error)
        })
    }
}

fn write<A: Serialize>(arguments: &A) -> Result<Bytes> {
    let body = serde_json::to_vec(arguments).map_err(|error| {
        Error::store(StoreErrorKind::Broken, "a call cannot be written", "please report this").because(error)
    })?;
    if body.len() > LARGEST_BODY {
        let message = format!("a call of {} bytes is too large; {LARGEST_BODY} is the most", body.len());
        return Err(ValidationError(format!("{message}: make several of it")).into());
    }
    Ok(Bytes::from(body))
}
