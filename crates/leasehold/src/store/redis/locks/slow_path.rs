//! Slow path: applies the rules of leasehold-model to a lock that was read, and stores the lock if it
//! has not changed meanwhile.

use std::time::Duration;

use redis::{Cmd, Value};

use super::super::scripts::SLOW_PATH;
use super::apply::Locks;
use super::call::{Applied, HandOver, ReadLock};
use super::codec::{self, StoredLock};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Acquire, Lease, LeaseId, LockName, LockOp, Ticket};

/// Maximum number of consecutive conflicts with other clients.
const MAX_CONFLICTS: u32 = 32;

/// Change of one ticket in the list: its index, the packed ticket that was read, and the new one.
/// Empty is a ticket that does not exist.
type TicketEdit = (usize, Vec<u8>, Vec<u8>);

/// Channel and content of a message to another process.
type Message = (String, Vec<u8>);

impl Locks {
    /// Applies an operation to a lock that was read. Returns the result and the number of replicas that
    /// have acknowledged it, if it waits for replicas; `None` if another client has changed the lock.
    pub(super) async fn compare_and_swap(
        &self,
        name: &LockName,
        op: &LockOp,
        read: ReadLock,
        address: &[u8],
    ) -> Result<Option<(Applied, Option<i64>)>> {
        let now = read.now;
        let before = match read.record.as_slice() {
            [] => StoredLock::without_record(name, read.token),
            record => codec::stored_lock(name, record, read.listed)?,
        };
        let mut after = before.record.clone();
        let applied = after.apply(op, now);
        // `wake_at` is raised only when it has passed, so that most changes need not compare all
        // tickets with those that were read. A restart moves all times.
        let exact = before.wake_at <= now || matches!(op, LockOp::Restarted(_));
        let first_end = after.next_end();
        let wake_at = if exact {
            first_end.unwrap_or_default()
        } else {
            first_end.map_or(before.wake_at, |end| end.min(before.wake_at))
        };
        let (handed_over, messages) = self.hand_over(&before, applied.handed_over)?;
        let result = Applied { outcome: applied.outcome, handed_over };
        if !applied.changed && wake_at == before.wake_at {
            return Ok(Some((result, None)));
        }
        let own = match op {
            LockOp::Acquire(Acquire { request, queue: Some(_), .. }) => Some((request.lease_id, address)),
            _ => None,
        };
        let edits = ticket_edits(&before, &after.waiters, own)?;
        let (head, body) = codec::pack_record(&after)?;
        let with = |cmd: &mut Cmd| {
            self.add_key(cmd, name);
            cmd.arg(name.as_str()).arg(&read.record).arg(read.token.get());
            cmd.arg(u8::from(applied.changed)).arg(u8::from(exact)).arg(wake_at.as_micros());
            cmd.arg(&head).arg(&body).arg(applied.events.len()).arg(messages.len());
            for event in &applied.events {
                cmd.arg(codec::pack_event(event));
            }
            for (channel, message) in &messages {
                cmd.arg(channel).arg(message);
            }
            for (index, old, new) in &edits {
                cmd.arg(index).arg(old).arg(new);
            }
        };
        let (stored, replicas) = self.run(&SLOW_PATH, op, with).await?;
        Ok((stored == Value::Int(1)).then_some((result, replicas)))
    }

    /// Determines the channels of waiters that were granted the lock, and the messages to other
    /// processes.
    fn hand_over(&self, before: &StoredLock, granted: Vec<Lease>) -> Result<(Vec<HandOver>, Vec<Message>)> {
        let (mut handed_over, mut messages) = (Vec::new(), Vec::new());
        for lease in granted {
            let address = before.address_of(&lease.request.lease_id).unwrap_or_default();
            let (channel, attempt_id) = self.subscriber.resolve(address);
            if self.publishes() && channel != self.subscriber.channel {
                let mut message = lease.request.lease_id.as_uuid().as_bytes().to_vec();
                if !attempt_id.is_empty() {
                    message.extend(attempt_id);
                    message.extend(codec::pack_lease(&lease)?);
                }
                messages.push((channel.clone(), message));
            }
            handed_over.push(HandOver { lease, channel });
        }
        Ok((handed_over, messages))
    }

    /// Waits before an operation is tried again after this number of conflicts, the first time not at
    /// all. Returns an error after too many conflicts.
    pub(super) async fn back_off(&self, name: &LockName, conflicts: u32) -> Result<()> {
        if conflicts > MAX_CONFLICTS {
            let message = format!(
                "lock '{name}' on the store {} cannot be changed: too many concurrent changes",
                self.connections.display_url()
            );
            return Err(Error::store(StoreErrorKind::Unavailable, message, "retry"));
        }
        if conflicts > 1 {
            let micros = fastrand::u64(0..=1000 << conflicts.min(7));
            tokio::time::sleep(Duration::from_micros(micros)).await;
        }
        Ok(())
    }
}

/// Returns the changes of the list of tickets, last index first. `own` is the request of the caller
/// and its notification address.
fn ticket_edits(
    before: &StoredLock,
    after: &[Ticket],
    own: Option<(LeaseId, &[u8])>,
) -> Result<Vec<TicketEdit>> {
    let listed = before.record.waiters.as_slice();
    let removal = |index: usize| (index, before.tickets[index].clone(), Vec::new());
    let (mut edits, mut at) = (Vec::new(), 0);
    for ticket in after {
        let id = ticket.request.lease_id;
        let own = own.filter(|(own, _)| *own == id).map(|(_, address)| address);
        let packed =
            || codec::pack_ticket(ticket, own.or_else(|| before.address_of(&id)).unwrap_or_default());
        match listed[at..].iter().position(|listed| listed.request.lease_id == id) {
            Some(removed) => {
                edits.extend((at..at + removed).map(removal));
                at += removed;
                if own.is_some() || listed[at] != *ticket {
                    edits.push((at, before.tickets[at].clone(), packed()?));
                }
                at += 1;
            }
            None => edits.push((at, Vec::new(), packed()?)),
        }
    }
    edits.extend((at..listed.len()).map(removal));
    edits.reverse();
    Ok(edits)
}
