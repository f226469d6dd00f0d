//! Conversion of operations to script arguments, and of script replies to outcomes.

use redis::{Cmd, Value};

use super::super::error::unreadable;
use super::codec;
use crate::error::Result;
use crate::model::{
    Acquire, Conflict, HeldBy, Lease, LeaseStatus, LockOp, Outcome, Queued, Timestamp, Token,
};

/// Decoded reply of `apply.lua`.
pub(super) enum Reply {
    /// A fast path has applied the operation.
    Applied(Applied),
    /// The operation needs the slow path.
    Read(ReadLock),
}

pub(super) struct Applied {
    pub(super) outcome: Outcome,
    pub(super) handed_over: Vec<HandOver>,
}

/// Lock as stored at `now`.
pub(super) struct ReadLock {
    pub(super) now: Timestamp,
    /// Packed record; empty if there is none.
    pub(super) record: Vec<u8>,
    /// Token of the record or, without a record, the minimum token.
    pub(super) token: Token,
    /// Packed tickets, if they are in a list beside the record.
    pub(super) listed: Vec<Vec<u8>>,
}

/// Lease that a ticket has turned into, and the channel of its waiter's process.
pub(super) struct HandOver {
    pub(super) lease: Lease,
    pub(super) channel: String,
}

/// Arguments of an operation, in the order in which the scripts read them.
pub(super) struct Arguments {
    pub(super) op: &'static str,
    rest: Vec<Vec<u8>>,
}

impl Arguments {
    /// Packs an operation. A waiter is notified at `address`; `channel` is that of this process. The
    /// arguments of an operation without a fast path are left out.
    pub(super) fn of(op: &LockOp, address: &[u8], channel: &[u8]) -> Result<Self> {
        let id = |id: &crate::model::LeaseId| id.as_uuid().as_bytes().to_vec();
        let (op, rest) = match op {
            LockOp::Acquire(Acquire { request, queue, steal_after }) => {
                let ttl = number(request.ttl.as_micros());
                let mut rest = vec![codec::identity(request), codec::extras(request)?, ttl];
                if queue.is_some() || steal_after.is_some() {
                    rest.push(request.priority.get().to_string().into_bytes());
                    rest.extend([optional(*queue), optional(*steal_after), address.to_vec()]);
                }
                ("acquire", rest)
            }
            LockOp::Renew(renew) => {
                ("renew", vec![id(&renew.lease_id), number(renew.token.get()), optional(renew.ttl)])
            }
            LockOp::Release(release) => (
                "release",
                vec![
                    id(&release.lease_id),
                    number(release.token.get()),
                    optional(release.at_least),
                    channel.to_vec(),
                ],
            ),
            LockOp::Withdraw(leave) => ("withdraw", vec![id(&leave.lease_id)]),
            LockOp::RenewLogged(_)
            | LockOp::RequestRelease(_)
            | LockOp::ForceRelease(_)
            | LockOp::Sweep(_)
            | LockOp::Restarted(_) => ("read", Vec::new()),
        };
        Ok(Self { op, rest })
    }

    /// Returns the arguments for `batch.lua`, if it may support the operation: the first three.
    pub(super) fn batch_arguments(&self) -> Option<[Vec<u8>; 3]> {
        match (self.op, self.rest.as_slice()) {
            ("acquire" | "renew" | "release", [one, two, three, ..]) => {
                Some([one.clone(), two.clone(), three.clone()])
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
    pub(super) fn read(op: &LockOp, reply: Value) -> Result<Self> {
        let applied = |outcome| Self::Applied(Applied { outcome, handed_over: Vec::new() });
        let read = match (op, reply) {
            // The reply to an acquire is the time, which is also the token of the lease.
            (LockOp::Acquire(acquire), Value::Int(token)) => {
                granted(acquire, token).map(|lease| applied(Outcome::Granted(lease)))
            }
            // The reply is a record whose only lease was released or renewed.
            (LockOp::Release(_), Value::BulkString(record)) => {
                Some(applied(Outcome::Released(codec::first_lease(&record)?)))
            }
            (LockOp::Renew(_), Value::BulkString(record)) => {
                Some(applied(Outcome::Renewed(codec::first_lease(&record)?)))
            }
            (_, Value::Array(mut fields)) => Self::read_fields(&mut fields)?,
            _ => None,
        };
        read.ok_or_else(|| unreadable("the reply of a script"))
    }

    /// Reads a reply about a queue, or a lock for the slow path. The first field is only a name.
    fn read_fields(fields: &mut [Value]) -> Result<Option<Self>> {
        let (outcome, handed_over) = match fields {
            [_, Value::BulkString(lease), Value::BulkString(granted), Value::BulkString(channel)] => {
                let channel = String::from_utf8_lossy(channel).into_owned();
                let handed_over = vec![HandOver { lease: codec::lease(granted)?, channel }];
                (Outcome::Released(codec::lease(lease)?), handed_over)
            }
            [_, Value::Int(ahead), Value::Int(waiters), Value::Array(leases)] => {
                let conflict = conflict(*waiters, leases)?;
                let ahead = u32::try_from(*ahead).unwrap_or(u32::MAX);
                (Outcome::Queued(Queued { ahead, conflict }), Vec::new())
            }
            [_, Value::Int(waiters), Value::Int(full), Value::Int(now), Value::Array(leases)] => {
                let now = u64::try_from(*now).ok().map(Timestamp::from_micros);
                let conflict = Conflict { full: *full == 1, now, ..conflict(*waiters, leases)? };
                (Outcome::Conflict(conflict), Vec::new())
            }
            [_] => (Outcome::Withdrawn, Vec::new()),
            [_, Value::Int(now), Value::BulkString(record), Value::Int(token), Value::Array(listed)] => {
                let [now, token] = [now, token].map(|number| u64::try_from(*number).unwrap_or_default());
                return Ok(Some(Self::Read(ReadLock {
                    now: Timestamp::from_micros(now),
                    record: std::mem::take(record),
                    token: Token::new(token).unwrap_or(Token::MAX),
                    listed: listed.iter().map(|ticket| bytes(ticket).to_vec()).collect(),
                })));
            }
            _ => return Ok(None),
        };
        Ok(Some(Self::Applied(Applied { outcome, handed_over })))
    }
}

fn conflict(waiters: i64, leases: &[Value]) -> Result<Conflict> {
    let holder = |lease: &Value| codec::lease(bytes(lease)).map(|lease| HeldBy::from(&lease));
    let holders = leases.iter().map(holder).collect::<Result<_>>()?;
    Ok(Conflict { holders, waiters: u32::try_from(waiters).unwrap_or(u32::MAX), full: false, now: None })
}

/// Returns the bytes of a field; none if it has another type, which no codec reads.
fn bytes(field: &Value) -> &[u8] {
    match field {
        Value::BulkString(bytes) => bytes,
        _ => &[],
    }
}

fn granted(acquire: &Acquire, token: i64) -> Option<Lease> {
    let micros = u64::try_from(token).ok()?;
    let now = Timestamp::from_micros(micros);
    Some(Lease {
        request: acquire.request.clone(),
        token: Token::new(micros).ok()?,
        acquired_at: now,
        renewed_at: now,
        expires_at: now.plus(acquire.request.ttl),
        renewals: 0,
        status: LeaseStatus::Active,
        release_request: None,
        took_over: None,
    })
}
