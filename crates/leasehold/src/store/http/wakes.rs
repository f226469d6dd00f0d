//! One long poll for the wake-ups of all waiters and workers of this store. Wake-ups are hints:
//! polling compensates for lost ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::link::{Letter, Link};
use super::trouble::Refusal;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{LeaseId, QueueName};
use crate::store::protocol::{LONGEST_POLL_SECONDS, Listen, MOST_LISTENED, Woken};
use crate::store::wake::{Bell, Doorbell};
use crate::store::{BootInstant, OnNotice, QueueSubscription, Recipient, Subscription, WaiterSubscription};

/// Timeout of a long poll, after which it is considered lost.
const PATIENCE: Duration = Duration::from_secs(LONGEST_POLL_SECONDS + 5);
/// Delay after a failed poll.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of concurrent polls: one that waits, and one with a changed list, which makes the
/// server end the first.
const POLLS: usize = 2;

/// Subscriptions of this store. The list is sent again whenever it changes.
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

/// Removes a waiter from the list when dropped.
struct Listed {
    waiter: LeaseId,
    board: Weak<Board>,
}

/// Removes a subscription from the list when dropped.
struct Subscribed {
    to: Recipient,
    board: Weak<Board>,
}

/// Subscriptions to send: waiters, queues and notices.
type Wanted = (Vec<LeaseId>, Vec<QueueName>, Vec<Recipient>);

impl Wakes {
    pub(super) fn new(link: Arc<Link>, home: Handle, poll: Duration) -> Self {
        Self { board: Arc::default(), link, home, poll, started: Once::new() }
    }

    pub(super) fn changes(&self, waiter: LeaseId) -> WaiterSubscription {
        let listed = Listed { waiter, board: Arc::downgrade(&self.board) };
        let (changes, bell) = WaiterSubscription::apart(waiter, self.poll, listed);
        self.board.bells().insert(waiter, bell);
        self.news();
        changes
    }

    pub(super) fn arrivals(&self, queues: &[QueueName]) -> QueueSubscription {
        let arrivals = self.board.door.listen(queues, self.poll);
        self.news();
        arrivals
    }

    /// Subscribes to the notices for a lease or a worker of this process. The list has one
    /// subscription for each recipient.
    pub(super) fn subscribe(&self, to: Recipient, on_notice: OnNotice) -> Subscription {
        self.board.notices().insert(to, on_notice);
        self.news();
        Subscription::new(Subscribed { to, board: Arc::downgrade(&self.board) })
    }

    /// Notifies a worker of this process that a task may have arrived.
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
        self.board.changed.notify_one(); // The listener then finds that the store is closed.
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
            // The number of tasks is not known: all workers of this process that wait for the queue
            // poll.
            self.door.ring(queue, usize::MAX);
        }
        drop(bells);
        for recipient in &woken.notices {
            // Called without the map locked: a callback may start or end a subscription.
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
            // A shorter list is not worth a new poll: the next poll sends it.
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

/// Polls while the store is open and has subscriptions.
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
        Error::store(StoreErrorKind::Broken, message, "please report this").because(error)
    };
    let body = Bytes::from(serde_json::to_vec(&(list,)).map_err(broken)?);
    let letter = Letter { path: "wakes", body: Some(body), until: None, supersedes: false };
    let reply = link.exchange(letter, BootInstant::now().plus(PATIENCE)).await;
    let reply = reply.map_err(|failed| failed.explain(link.place()))?;
    let reply = Refusal::of(reply, link.place()).map_err(|refusal| refusal.error)?;
    serde_json::from_slice(&reply.body).map_err(broken)
}
