//! One poll for the wake-ups of all waiters and workers of this store. Wake-ups are hints: what gets lost is polled for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::link::{Letter, Link};
use super::trouble::Refusal;
use crate::error::{Error, Result, Trouble};
use crate::model::{LeaseId, QueueName};
use crate::store::protocol::{LONGEST_POLL_SECONDS, Listen, MOST_LISTENED, Woken};
use crate::store::wake::{Bell, Doorbell};
use crate::store::{Arrivals, Changes, Moment};

/// A poll that is not answered after this is lost.
const PATIENCE: Duration = Duration::from_secs(LONGEST_POLL_SECONDS + 5);
/// After a poll that failed, the next waits so long.
const PAUSE: Duration = Duration::from_secs(1);
/// So many polls are under way at most: one that waits, and one with news for the server that makes the first one end.
const POLLS: usize = 2;

/// Who listens for what. The list is sent anew whenever it changes.
#[derive(Debug)]
pub(super) struct Wakes {
    board: Arc<Board>,
    link: Arc<Link>,
    home: Handle,
    poll: Duration,
    started: Once,
}

#[derive(Default)]
struct Board {
    bells: Mutex<HashMap<LeaseId, Bell>>,
    door: Doorbell,
    changed: Notify,
}

/// Takes a waiter from the list.
struct Listed {
    waiter: LeaseId,
    board: Weak<Board>,
}

impl Wakes {
    pub(super) fn new(link: Arc<Link>, home: Handle, poll: Duration) -> Self {
        Self { board: Arc::default(), link, home, poll, started: Once::new() }
    }

    pub(super) fn changes(&self, waiter: LeaseId) -> Changes {
        let listed = Listed { waiter, board: Arc::downgrade(&self.board) };
        let (changes, bell) = Changes::apart(waiter, self.poll, listed);
        self.board.bells().insert(waiter, bell);
        self.news();
        changes
    }

    pub(super) fn arrivals(&self, queues: &[QueueName]) -> Arrivals {
        let arrivals = self.board.door.listen(queues, self.poll);
        self.news();
        arrivals
    }

    /// Something has come for whoever waits here.
    pub(super) fn arrived(&self, queue: &QueueName) {
        self.board.door.ring(queue, 1);
    }

    fn news(&self) {
        let (board, link) = (&self.board, &self.link);
        self.started.call_once(|| {
            self.home.spawn(listen(Arc::downgrade(board), link.clone()));
        });
        self.board.changed.notify_one();
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.board.changed.notify_one(); // So that its listener sees that nobody is left.
    }
}

impl Board {
    fn bells(&self) -> MutexGuard<'_, HashMap<LeaseId, Bell>> {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> (Vec<LeaseId>, Vec<QueueName>) {
        let leases = self.bells().keys().take(MOST_LISTENED).copied().collect();
        let mut queues = self.door.heard();
        queues.truncate(MOST_LISTENED);
        (leases, queues)
    }

    fn ring(&self, woken: &Woken) {
        let bells = self.bells();
        woken.leases.iter().filter_map(|lease| bells.get(lease)).for_each(Bell::ring);
        for queue in &woken.queues {
            // How much has come is not known: all who wait for it here look.
            self.door.ring(queue, usize::MAX);
        }
    }
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Board").finish_non_exhaustive()
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(board) = self.board.upgrade() {
            board.bells().remove(&self.waiter);
            // Not worth a poll: the next one has the shorter list.
        }
    }
}

/// Polls as long as the store is open and somebody listens.
async fn listen(board: Weak<Board>, link: Arc<Link>) {
    let mut polls = JoinSet::new();
    let mut number = 0;
    let mut sent = None;
    while let Some(open) = board.upgrade() {
        let (mut leases, queues) = open.list();
        leases.sort_unstable();
        let wanted = (leases, queues);
        let nobody = wanted.0.is_empty() && wanted.1.is_empty();
        let is_news = sent.as_ref() != Some(&wanted);
        if !nobody && polls.len() < POLLS && (is_news || polls.is_empty()) {
            number += 1;
            let (leases, queues) = wanted.clone();
            let list = Listen { client: link.client, number, leases, queues };
            polls.spawn(poll(link.clone(), list));
            sent = Some(wanted);
            continue;
        }
        tokio::select! {
            Some(done) = polls.join_next(), if !polls.is_empty() => match done {
                Ok(Ok(woken)) => open.ring(&woken),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "no wake-ups for now: waiters poll");
                    drop(open);
                    tokio::time::sleep(PAUSE).await;
                }
                Err(_) => return,
            },
            () = open.changed.notified() => drop(open),
        }
    }
}

async fn poll(link: Arc<Link>, list: Listen) -> Result<Woken> {
    let broken = |error| {
        let message = "a wake-up makes no sense";
        Error::store(Trouble::Broken, message, "please report this").because(error)
    };
    let body = Bytes::from(serde_json::to_vec(&(list,)).map_err(broken)?);
    let letter = Letter { path: "wakes", body: Some(body), until: None, supersedes: false };
    let reply = link.exchange(letter, Moment::now().plus(PATIENCE)).await;
    let reply = reply.map_err(|failed| failed.explain(link.place()))?;
    let reply = Refusal::of(reply, link.place()).map_err(|refusal| refusal.error)?;
    serde_json::from_slice(&reply.body).map_err(broken)
}
