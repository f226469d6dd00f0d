//! Notifications from other processes to waiters and holders. Each process has a channel of its
//! own, and a client that grants a ticket publishes that on the channel that the ticket names; no
//! other process receives it. Notices to holders and workers use a channel that all processes
//! share.

use std::sync::LazyLock;

use uuid::Uuid;

use super::super::connection::{Connections, MessageHandler, SubscribeOnce};
use super::super::keys::Keys;
use super::codec;
use crate::model::LeaseId;
use crate::store::wake::{deliver, deliver_by_number, wake_by_id};
use crate::store::{Recipient, clock};

/// Name of this process, shared by all its stores: waiters within the process need no message.
static PROCESS: LazyLock<String> = LazyLock::new(|| clock::new_lease_id().as_uuid().simple().to_string());

/// Subscription of this process to its channels.
pub(crate) struct Subscriber {
    pub(super) channel: String,
    /// Channel of notices, which is the same for every process.
    pub(super) notice_channel: String,
    started: SubscribeOnce,
}

impl Subscriber {
    pub(super) fn new(keys: &Keys) -> Self {
        let (channel, notice_channel) = (keys.process_channel(&PROCESS), keys.notice_channel());
        Self { channel, notice_channel, started: SubscribeOnce::default() }
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
        self.started.start(connections, || (vec![self.channel.clone(), self.notice_channel.clone()], WakeUp));
    }
}

/// Wakes the waiters and holders of this process.
struct WakeUp;

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
}
