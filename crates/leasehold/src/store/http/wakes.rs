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
use crate::store::{Arrivals, Changes, Moment, OnNotice, Recipient, Subscription};

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
    notices: Mutex<HashMap<Recipient, OnNotice>>,
    door: Doorbell,
    changed: Notify,
}

/// Takes a waiter from the list.
struct Listed {
    waiter: LeaseId,
    board: Weak<Board>,
}

/// Takes a subscription from the list.
struct Subscribed {
    to: Recipient,
    board: Weak<Board>,
}

/// What is listened for: waiters, queues and notices.
type Wanted = (Vec<LeaseId>, Vec<QueueName>, Vec<Recipient>);

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

    /// Notices for a lease or a worker of this process. The list has one subscription for each.
    pub(super) fn subscribe(&self, to: Recipient, on_notice: OnNotice) -> Subscription {
        self.board.notices().insert(to, on_notice);
        self.news();
        Subscription::new(Subscribed { to, board: Arc::downgrade(&self.board) })
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

    fn notices(&self) -> MutexGuard<'_, HashMap<Recipient, OnNotice>> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> Wanted {
        let mut leases: Vec<_> = self.bells().keys().take(MOST_LISTENED).copied().collect();
        let mut notices: Vec<_> = self.notices().keys().take(MOST_LISTENED).copied().collect();
        let mut queues = self.door.heard();
        queues.truncate(MOST_LISTENED);
        leases.sort_unstable();
        notices.sort_unstable();
        (leases, queues, notices)
    }

    fn ring(&self, woken: &Woken) {
        let bells = self.bells();
        woken.leases.iter().filter_map(|lease| bells.get(lease)).for_each(Bell::ring);
        for queue in &woken.queues {
            // How much has come is not known: all who wait for it here look.
            self.door.ring(queue, usize::MAX);
        }
        drop(bells);
        for recipient in &woken.notices {
            // Called without the map locked: a notice may begin or end a subscription.
            let on_notice = self.notices().get(recipient).cloned();
            if let Some(on_notice) = on_notice {
                on_notice();
            }
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

impl Drop for Subscribed {
    fn drop(&mut self) {
        if let Some(board) = self.board.upgrade() {
            board.notices().remove(&self.to);
        }
    }
}

/// Polls as long as the store is open and somebody listens.
async fn listen(board: Weak<Board>, link: Arc<Link>) {
    let mut polls = JoinSet::new();
    let mut number = 0;
    let mut sent = None;
    while let Some(open) = board.upgrade() {
        let wanted = open.list();
        let nobody = wanted == Wanted::default();
        let is_news = sent.as_ref() != Some(&wanted);
        if !nobody && polls.len() < POLLS && (is_news || polls.is_empty()) {
            number += 1;
            let (leases, queues, notices) = wanted.clone();
            let list = Listen { client: link.client, number, leases, queues, notices };
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
