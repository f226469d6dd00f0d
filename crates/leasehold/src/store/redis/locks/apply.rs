//! Applies operations to locks, alone or in a batch, and notifies waiters that were granted a lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::{Cmd, Value};

use super::super::connection::{BatchedOp, Batcher, Connections, REPLICA_TIMEOUT_MILLIS};
use super::super::error::unreadable;
use super::super::keys::{BUCKETS, Keys, bucket_number};
use super::super::options::RedisOptions;
use super::super::scripts::{APPLY, Script, ScriptCall, script_time};
use super::blocks::EventMover;
use super::call::{Applied, Arguments, HandOver, Reply};
use super::subscriber::Subscriber;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Acquire, LeaseId, LockName, LockOp, Outcome, Withdraw};
use crate::store::wake::{Waiters, wake_by_id};
use crate::store::{BootInstant, Clock, Recipient, clock};

pub(crate) struct Locks {
    pub(crate) connections: Arc<Connections>,
    batcher: Arc<Batcher>,
    pub(super) keys: Arc<Keys>,
    pub(crate) subscriber: Subscriber,
    pub(super) clock: Option<Clock>,
    pub(super) mover: Arc<EventMover>,
    pub(super) wait_replicas: u32,
    /// Channel of this process, after '+' if the scripts publish notifications.
    reply_channel: Vec<u8>,
    pub(crate) waiters: Waiters,
    /// For each bucket the order of callers whose change of a lock has conflicted with another one: so
    /// they do not conflict with each other.
    retries: Vec<tokio::sync::Mutex<()>>,
    /// For each bucket the name of the last lock that was examined by `forget`.
    pub(super) forget_cursors: tokio::sync::Mutex<Vec<String>>,
}

impl Locks {
    pub(crate) fn new(connections: Connections, options: &RedisOptions) -> Self {
        let (connections, keys) = (Arc::new(connections), Arc::new(Keys::new(&options.prefix)));
        let bucket_events = options.max_events.div_ceil(u32::from(BUCKETS)).max(1);
        let waiters = Waiters::default();
        let subscriber = Subscriber::new(&keys, waiters);
        let publishes = if connections.is_cluster() { "-" } else { "+" };
        Self {
            reply_channel: format!("{publishes}{}", subscriber.channel).into_bytes(),
            mover: EventMover::new(connections.clone(), keys.clone(), bucket_events),
            connections,
            batcher: Arc::default(),
            subscriber,
            keys,
            waiters,
            clock: options.clock.clone(),
            wait_replicas: options.wait_replicas,
            retries: (0..BUCKETS).map(|_| tokio::sync::Mutex::default()).collect(),
            forget_cursors: tokio::sync::Mutex::new(vec![String::new(); usize::from(BUCKETS)]),
        }
    }

    pub(crate) async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let mut since = BootInstant::now();
        let address = match op {
            LockOp::Acquire(Acquire { queue: Some(_), .. }) => {
                Subscriber::address(self.register_attempt(name, op, since))
            }
            _ => Vec::new(),
        };
        let arguments = Arguments::of(op, &address, &self.reply_channel)?;
        // Every lease ends, but a request may be repeated many times without an event.
        if !matches!(op, LockOp::Acquire(_) | LockOp::Renew(_)) {
            self.mover.count(name);
        }
        if let Some(outcome) = self.apply_batched(name, op, &arguments).await {
            return outcome;
        }
        let (mut turn, mut conflicts) = (None, 0);
        let (Applied { outcome, handed_over }, replicas) = loop {
            let with = |cmd: &mut Cmd| {
                self.add_key(cmd, name);
                cmd.arg(arguments.op).arg(script_time(self.clock.as_ref()));
                cmd.arg(name.as_str());
                arguments.add_to(cmd);
            };
            let (reply, replicas) = self.run(&APPLY, op, with).await?;
            let read = match Reply::read(op, reply)? {
                Reply::Applied(applied) => break (applied, replicas),
                Reply::Read(read) => read,
            };
            // Boxed: the fast paths must not pay for it.
            if let Some(stored) = Box::pin(self.compare_and_swap(name, op, read, &address)).await? {
                break stored;
            }
            conflicts += 1;
            self.back_off(name, conflicts).await?;
            if turn.is_none() {
                turn = Some(self.retries[bucket_number(name.as_str())].lock().await);
            }
            since = BootInstant::now();
        };
        drop(turn);
        if !handed_over.is_empty() && self.notify_waiters(name, handed_over, since) {
            // Let the new holder run before this caller returns: its release need not wait for this
            // caller's next ticket.
            tokio::task::yield_now().await;
        }
        match (&outcome, replicas) {
            (Outcome::Granted(lease), Some(replicas)) if replicas < i64::from(self.wait_replicas) => {
                Err(self.withdraw_grant(name, lease.request.lease_id, replicas).await)
            }
            _ => Ok(outcome),
        }
    }

    /// Adds the key of a lock, from which both scripts of an operation build the others.
    pub(super) fn add_key(&self, cmd: &mut Cmd, name: &LockName) {
        let bucket = self.keys.bucket_of(name);
        let key = bucket.lock(name.as_str());
        if self.connections.is_cluster() {
            cmd.arg(2).arg(key).arg(&bucket.absent);
        } else {
            cmd.arg(1).arg(key);
        }
    }

    /// Whether scripts publish notifications: on a Cluster they cannot publish to another shard.
    pub(super) fn publishes(&self) -> bool {
        !self.connections.is_cluster()
    }

    /// Runs a script of an operation. An acquire waits for replicas, if they must acknowledge a grant;
    /// then also returns their number.
    pub(super) async fn run(
        &self,
        script: &Script,
        op: &LockOp,
        with: impl Fn(&mut Cmd),
    ) -> Result<(Value, Option<i64>)> {
        let waits_for_replicas = self.wait_replicas > 0 && matches!(op, LockOp::Acquire(_));
        let wait = waits_for_replicas
            .then(|| redis::cmd("WAIT").arg(self.wait_replicas).arg(REPLICA_TIMEOUT_MILLIS).take());
        let lease = op.lease_id();
        let call = ScriptCall { lease: lease.as_ref(), then: wait.as_slice(), repeat: op.into() };
        match script.run(&self.connections, call, with).await? {
            Value::Array(mut both) if waits_for_replicas => match both.pop() {
                Some(Value::Int(replicas)) => Ok((both.pop().unwrap_or(Value::Nil), Some(replicas))),
                _ => Ok((both.pop().unwrap_or(Value::Nil), None)),
            },
            reply => Ok((reply, None)),
        }
    }

    /// Registers an acquire attempt of a waiter and returns its id, by which the waiter
    /// recognizes that a handed-over lease was granted after this attempt.
    fn register_attempt(&self, name: &LockName, op: &LockOp, since: BootInstant) -> Option<u64> {
        match op {
            // With `wait_replicas` the waiter must query the store itself.
            LockOp::Acquire(Acquire { request, queue: Some(_), .. }) if self.wait_replicas == 0 => {
                // A process that cannot read the ticket cannot guess this id.
                let attempt_id = clock::new_lease_id().as_uuid().as_u64_pair().1;
                self.waiters
                    .register_request(name, &request.lease_id, attempt_id, since)
                    .then_some(attempt_id)
            }
            _ => None,
        }
    }

    /// Sends a simple operation in a batch when many callers wait; `None` if it must be sent alone.
    async fn apply_batched(
        &self,
        name: &LockName,
        op: &LockOp,
        arguments: &Arguments,
    ) -> Option<Result<Outcome>> {
        let lease = &op.lease_id()?;
        if self.wait_replicas > 0 || !self.connections.should_batch(lease, self.batcher.is_busy()) {
            return None;
        }
        let batched = BatchedOp {
            record: self.keys.bucket_of(name).lock(name.as_str()),
            name_length: name.as_str().len(),
            op: arguments.op,
            arguments: arguments.batch_arguments()?,
            now: script_time(self.clock.as_ref()),
        };
        let reply = self.batcher.send(&self.connections, lease, batched, op.into()).await?;
        Some(self.connections.read(reply).and_then(|reply| match Reply::read(op, reply)? {
            Reply::Applied(applied) => Ok(applied.outcome),
            Reply::Read(_) => Err(unreadable("the reply of a script")),
        }))
    }

    /// Withdraws a grant that a failover would lose, and returns the error for the caller.
    async fn withdraw_grant(&self, name: &LockName, lease_id: LeaseId, replicas: i64) -> Error {
        let withdrawn = Box::pin(self.apply(name, &LockOp::Withdraw(Withdraw { lease_id }))).await;
        if let Err(error) = withdrawn {
            tracing::debug!(lock = %name, %error, "a lease could not be withdrawn; it expires by itself");
        }
        let message = format!(
            "{replicas} of {} replicas of the store {} have acknowledged the grant of lock '{name}', so the lease was withdrawn",
            self.wait_replicas,
            self.connections.display_url()
        );
        let hint = "check the replicas, or require fewer with ?wait_replicas=…";
        Error::store(StoreErrorKind::Unavailable, message, hint)
    }

    /// Notifies exactly the waiters that were granted the lock. Returns whether one of them is in this
    /// process.
    fn notify_waiters(&self, name: &LockName, handed_over: Vec<HandOver>, since: BootInstant) -> bool {
        let mut channels = BTreeMap::new();
        let mut leases = Vec::with_capacity(handed_over.len());
        for HandOver { lease, channel } in handed_over {
            channels.insert(lease.request.lease_id, channel);
            leases.push(lease);
        }
        if self.wait_replicas > 0 {
            // The waiters query the store, so that the replicas acknowledge their grants, too.
            for lease in &leases {
                wake_by_id(&lease.request.lease_id);
            }
            return false;
        }
        let granted = leases.len();
        let elsewhere = self.waiters.wake_local(name, leases, since);
        if self.connections.is_cluster() && !elsewhere.is_empty() {
            self.publish_to_other_shards(elsewhere.iter().map(|lease| lease.request.lease_id), &channels);
        }
        elsewhere.len() < granted
    }

    /// Sends notices to other processes.
    pub(crate) async fn notify(&self, to: &[Recipient]) {
        let publish = if self.connections.is_cluster() { "SPUBLISH" } else { "PUBLISH" };
        for recipient in to {
            let id = recipient.as_uuid().as_bytes().as_slice();
            let cmd = redis::cmd(publish).arg(&self.subscriber.notice_channel).arg(id).take();
            if let Err(error) = self.connections.send((&cmd).into()).await {
                tracing::debug!(%error, "other processes are not notified; they notice the change at their next renewal");
            }
        }
    }

    /// Notifies processes whose channel is on another shard of a Cluster. Does not wait for the
    /// result: the message is only a hint.
    fn publish_to_other_shards(
        &self,
        granted: impl Iterator<Item = LeaseId>,
        channels: &BTreeMap<LeaseId, String>,
    ) {
        for id in granted {
            let Some((channel, runtime)) = channels.get(&id).zip(self.connections.background_runtime())
            else {
                continue;
            };
            let cmd = redis::cmd("SPUBLISH").arg(channel).arg(id.as_uuid().as_bytes().as_slice()).take();
            let Some(connection) = self.connections.current() else { continue };
            runtime.spawn(async move {
                if let Err(error) = connection.send((&cmd).into()).await {
                    tracing::debug!(%error, "a notification could not be sent; its waiter polls");
                }
            });
        }
    }
}
