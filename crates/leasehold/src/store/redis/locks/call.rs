//! Conversion of operations to script arguments, and of script replies to outcomes.

use redis::{Cmd, Value};

use super::super::error::unreadable;
use super::codec;
use crate::error::Result;
use crate::model::{
    Acquire, Conflict, HeldBy, Lease, LockOp, NotHeld, Outcome, Queued, Status, Swept, Timestamp, Token,
    TookOver,
};

/// Decoded reply of the script.
pub(super) struct Reply {
    pub(super) outcome: Outcome,
    pub(super) handed_over: Vec<HandOver>,
}

/// Lease that a ticket has turned into, and the channel of its waiter's process.
pub(super) struct HandOver {
    pub(super) lease: Lease,
    pub(super) channel: String,
}

/// Arguments of an operation, in the order in which the scripts read them.
pub(super) struct Arguments {
    op: &'static str,
    rest: Vec<Vec<u8>>,
}

impl Arguments {
    /// Packs an operation. `attempt_id` identifies this acquire attempt of a waiter; it is `None` if
    /// the waiter cannot be notified of its lease.
    pub(super) fn of(op: &LockOp, attempt_id: Option<u64>) -> Result<Self> {
        let id = |id: &crate::model::LeaseId| id.as_uuid().as_bytes().to_vec();
        let text = |text: &str| text.as_bytes().to_vec();
        let (op, rest) = match op {
            LockOp::Acquire(Acquire { ask, queue, steal_after }) => {
                let ttl = number(ask.ttl.as_micros());
                let priority = ask.priority.get().to_string().into_bytes();
                let (queue, steal_after) = (optional(*queue), optional(*steal_after));
                let attempt_id = attempt_id.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default();
                let (identity, extras) = (codec::identity(ask), codec::extras(ask)?);
                ("acquire", vec![identity, extras, ttl, priority, queue, steal_after, attempt_id])
            }
            LockOp::Renew(renew) | LockOp::RenewLogged(renew) => {
                // Only the slow path knows `renew_logged`, and writes an event.
                let name = if matches!(op, LockOp::Renew(_)) { "renew" } else { "renew_logged" };
                (name, vec![id(&renew.lease_id), number(renew.token.get()), optional(renew.ttl)])
            }
            LockOp::Release(release) => (
                "release",
                vec![id(&release.lease_id), number(release.token.get()), optional(release.at_least)],
            ),
            LockOp::Leave(leave) => ("withdraw", vec![id(&leave.lease_id)]),
            LockOp::RequestRelease(request) => {
                let token = request.token.map(|token| number(token.get())).unwrap_or_default();
                let reason = request.reason.as_ref().map(|reason| text(reason.as_str())).unwrap_or_default();
                ("request_release", vec![token, text(request.by.as_str()), reason])
            }
            LockOp::ForceRelease(force) => (
                "force_release",
                vec![number(force.token.get()), text(force.by.as_str()), text(force.reason.as_str())],
            ),
            LockOp::Sweep(sweep) => ("sweep", sweep.dead.iter().map(id).collect()),
            LockOp::Restarted(restarted) => ("restarted", vec![restarted.boot.0.as_bytes().to_vec()]),
        };
        Ok(Self { op, rest })
    }

    pub(super) const fn op(&self) -> &'static str {
        self.op
    }

    /// Returns the arguments for `batch.lua`, if it may support the operation: the name of the
    /// operation, the name of the lock and the first three arguments.
    pub(super) fn batch_arguments(&self, name: &str) -> Option<[Vec<u8>; 5]> {
        let (op, name) = (self.op.as_bytes().to_vec(), name.as_bytes().to_vec());
        match (self.op, self.rest.as_slice()) {
            ("acquire" | "renew" | "release", [one, two, three, ..]) => {
                Some([op, name, one.clone(), two.clone(), three.clone()])
            }
            _ => None,
        }
    }

    pub(super) fn add_to(&self, cmd: &mut Cmd) {
        for argument in &self.rest {
            cmd.arg(argument);
        }
    }
}

fn number(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn optional(ttl: Option<crate::model::Ttl>) -> Vec<u8> {
    ttl.map(|ttl| number(ttl.as_micros())).unwrap_or_default()
}

impl Reply {
    pub(super) fn read(op: &LockOp, reply: &Value) -> Result<Self> {
        let read = match (op, reply) {
            // Fast path: the reply to an acquire is the time, which is also the token of the lease.
            (LockOp::Acquire(acquire), Value::Int(token)) => {
                granted(acquire, *token).map(|lease| (Outcome::Granted(lease), Vec::new()))
            }
            // Fast path: the reply is a record whose only lease was released or renewed.
            (LockOp::Release(_), Value::BulkString(record)) => {
                Some((Outcome::Released(codec::first_lease(record)?), Vec::new()))
            }
            (LockOp::Renew(_), Value::BulkString(record)) => {
                Some((Outcome::Renewed(codec::first_lease(record)?), Vec::new()))
            }
            (_, Value::Array(parts)) => ReplyFields(parts).outcome()?,
            _ => None,
        };
        let (outcome, handed_over) = read.ok_or_else(|| unreadable("the reply of a script"))?;
        Ok(Self { outcome, handed_over })
    }
}

fn granted(acquire: &Acquire, token: i64) -> Option<Lease> {
    let micros = u64::try_from(token).ok()?;
    let now = Timestamp::from_micros(micros);
    Some(Lease {
        ask: acquire.ask.clone(),
        token: Token::new(micros).ok()?,
        acquired_at: now,
        renewed_at: now,
        expires_at: now.plus(acquire.ask.ttl),
        renewals: 0,
        status: Status::Active,
        asked: None,
        took_over: None,
    })
}

/// Fields of a reply: the name of the outcome, the time, the waiters that were granted the lock, and
/// the data of the outcome.
struct ReplyFields<'a>(&'a [Value]);

impl ReplyFields<'_> {
    fn outcome(&self) -> Result<Option<(Outcome, Vec<HandOver>)>> {
        let Some(Value::BulkString(name)) = self.0.first() else {
            return Ok(None);
        };
        let count = |at: usize| match self.0.get(at) {
            Some(Value::Int(count)) => u32::try_from(*count).ok(),
            _ => None,
        };
        let lease = |at: usize| match self.0.get(at) {
            Some(Value::BulkString(lease)) => codec::lease(lease).map(Some),
            _ => Ok(None),
        };
        let outcome = match name.as_slice() {
            b"granted" => {
                let took_over = lease(4)?.map(|ended| Box::new(TookOver::of(&ended)));
                lease(3)?.map(|lease| Outcome::Granted(Lease { took_over, ..lease }))
            }
            b"renewed" => lease(3)?.map(Outcome::Renewed),
            b"released" => lease(3)?.map(Outcome::Released),
            b"forced" => lease(3)?.map(Outcome::Forced),
            b"queued" => {
                let conflict = self.conflict(4)?;
                count(3).zip(conflict).map(|(ahead, conflict)| Outcome::Queued(Queued { ahead, conflict }))
            }
            b"conflict" => {
                self.conflict(3)?.map(|conflict| Outcome::Conflict(Conflict { now: self.now(), ..conflict }))
            }
            b"withdrawn" => Some(Outcome::Left),
            b"release_requested" => count(3).map(Outcome::Asked),
            b"not_held" => {
                let token = match self.0.get(3) {
                    Some(Value::Int(token)) => {
                        u64::try_from(*token).ok().and_then(|token| Token::new(token).ok())
                    }
                    _ => None,
                };
                token
                    .zip(self.holders(4)?)
                    .map(|(token, holders)| Outcome::NotHeld(NotHeld { token, holders }))
            }
            b"swept" => match (count(3), count(4), count(5)) {
                (Some(leases), Some(tickets), Some(served)) => {
                    Some(Outcome::Swept(Swept { leases, tickets, served }))
                }
                _ => None,
            },
            _ => None,
        };
        Ok(outcome.zip(self.handed_over()?))
    }

    fn conflict(&self, at: usize) -> Result<Option<Conflict>> {
        let (Some(Value::Int(waiters)), Some(Value::Int(full))) = (self.0.get(at), self.0.get(at + 1)) else {
            return Ok(None);
        };
        let (waiters, full) = (u32::try_from(*waiters).unwrap_or(u32::MAX), *full == 1);
        Ok(self.holders(at + 2)?.map(|holders| Conflict { holders, waiters, full, now: None }))
    }

    /// Returns the time of the reply.
    fn now(&self) -> Option<Timestamp> {
        match self.0.get(1) {
            Some(Value::Int(now)) => u64::try_from(*now).ok().map(Timestamp::from_micros),
            _ => None,
        }
    }

    fn holders(&self, at: usize) -> Result<Option<Vec<HeldBy>>> {
        let Some(Value::Array(leases)) = self.0.get(at) else {
            return Ok(None);
        };
        let holder = |lease: &Value| match lease {
            Value::BulkString(lease) => codec::lease(lease).map(|lease| HeldBy::from(&lease)),
            _ => Err(unreadable("a lease")),
        };
        leases.iter().map(holder).collect::<Result<_>>().map(Some)
    }

    fn handed_over(&self) -> Result<Option<Vec<HandOver>>> {
        let Some(Value::Array(served)) = self.0.get(2) else {
            return Ok(None);
        };
        let one = |served: &Value| match served {
            Value::Array(parts) => match parts.as_slice() {
                [Value::BulkString(lease), Value::BulkString(channel), ..] => {
                    let channel = String::from_utf8_lossy(channel).into_owned();
                    Ok(HandOver { lease: codec::lease(lease)?, channel })
                }
                _ => Err(unreadable("a lease that was handed over")),
            },
            _ => Err(unreadable("a lease that was handed over")),
        };
        served.iter().map(one).collect::<Result<_>>().map(Some)
    }
}
