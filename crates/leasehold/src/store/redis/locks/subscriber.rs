//! Notifications from other processes to waiters and holders. Each process has a channel of its
//! own, and a client that grants a ticket publishes that on the channel that the ticket names; no
//! other process receives it. Notices to holders and workers use a channel that all processes
//! share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use uuid::Uuid;

use super::super::connection::{Connection, Connections, MessageHandler, POLL_INTERVAL, SubscribeOnce};
use super::super::keys::Keys;
use super::codec;
use crate::model::{LeaseId, LockName};
use crate::store::wake::{Waiters, deliver, deliver_by_number, wake_by_id};
use crate::store::{Recipient, WaiterSubscription, clock};

/// Name of this process, shared by all its stores: waiters within the process need no message.
static PROCESS: LazyLock<String> = LazyLock::new(|| clock::new_lease_id().as_uuid().simple().to_string());

/// Subscription of this process to its channels.
pub(crate) struct Subscriber {
    pub(super) channel: String,
    /// Channel of notices, which is the same for every process.
    pub(super) notice_channel: String,
    waiters: Waiters,
    started: SubscribeOnce,
    /// Whether the subscription is established.
    is_notified: Arc<AtomicBool>,
}

impl Subscriber {
    pub(super) fn new(keys: &Keys, waiters: Waiters) -> Self {
        let (channel, notice_channel) = (keys.process_channel(&PROCESS), keys.notice_channel());
        let (started, is_notified) = (SubscribeOnce::default(), Arc::default());
        Self { channel, notice_channel, waiters, started, is_notified }
    }

    /// Returns the address at which a waiter of this process is notified. `attempt_id` identifies its
    /// acquire attempt; it is `None` if the waiter cannot be notified of its lease.
    pub(super) fn address(attempt_id: Option<u64>) -> Vec<u8> {
        let mut address = PROCESS.as_bytes().to_vec();
        address.extend(attempt_id.into_iter().flat_map(u64::to_be_bytes));
        address
    }

    /// Returns the channel of an address, and the id, which may be empty, of the last acquire attempt.
    pub(super) fn resolve<'a>(&self, address: &'a [u8]) -> (String, &'a [u8]) {
        let (process, attempt_id) = address.split_at(PROCESS.len().min(address.len()));
        (self.channel.replace(PROCESS.as_str(), &String::from_utf8_lossy(process)), attempt_id)
    }

    /// Starts the subscription, once. Waiters poll whenever the subscription is not established.
    pub(crate) fn subscribe(&self, connections: &Connections) {
        self.started.start(connections, || {
            let handler = WakeUp { waiters: self.waiters, is_notified: self.is_notified.clone() };
            (vec![self.channel.clone(), self.notice_channel.clone()], handler)
        });
    }

    /// Subscribes one waiter of this process, or a relay.
    pub(crate) fn subscribe_waiter(
        &self,
        connections: &Connections,
        lock: Option<&LockName>,
        waiter: &LeaseId,
    ) -> WaiterSubscription {
        self.subscribe(connections);
        self.waiters.subscribe(lock, *waiter, POLL_INTERVAL).notified_while(&self.is_notified)
    }
}

/// Wakes the waiters and holders of this process.
struct WakeUp {
    waiters: Waiters,
    is_notified: Arc<AtomicBool>,
}

impl MessageHandler for WakeUp {
    /// Handles a message. A message with only the id of a lease makes the waiter query the store. If
    /// the lease and the id of the answered acquire attempt follow, the waiter need not query: only
    /// this process and the ticket know that id.
    fn on_message(&self, message: &[u8]) {
        if let Some((lease, attempt_id)) = codec::handed_over(message) {
            deliver_by_number(&lease, attempt_id);
        } else if let Some(Ok(id)) = message.get(..16).map(Uuid::from_slice) {
            wake_by_id(&LeaseId::from_uuid(id));
            deliver(&[Recipient::from_uuid(id)]);
        }
    }

    async fn while_subscribed(&self, _: &Connection) {
        self.is_notified.store(true, Ordering::Relaxed);
        // Messages that were sent before the subscription are lost.
        self.waiters.wake_all();
        std::future::pending::<()>().await;
    }

    fn on_lost(&self) {
        self.is_notified.store(false, Ordering::Relaxed);
        self.waiters.wake_all();
    }
}
