//! Loops of a process that acquire, hold and release locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::model::{Holder, Reason};
use leasehold::{Guard, GuardState, Leasehold, LockBuilder};
use leasehold_torture::history::{Event, Mode};

use crate::audit;
use crate::process::Process;
use crate::world::{Hold, OpId, holder_of_op, now};

/// Longest time that a call of the client takes beyond the caller's own limit.
const CALL_LIMIT: Duration = Duration::from_secs(15);

/// Locks that one loop acquires.
#[derive(Clone, Copy)]
pub(crate) enum Wants {
    /// One of the locks that all processes compete for.
    Hot,
    /// Several of them at once.
    Several,
    /// A lock that is held in shared mode, and from time to time exclusively.
    Shared,
    /// A lock with two slots.
    Slots,
}

/// Number of locks that all processes compete for.
const HOT: u32 = 2;
/// Lock that guards and tasks compete for.
pub(crate) const TASK_LOCK: &str = "task-lock";

/// One loop of a process.
pub(crate) struct GuardLoop {
    pub(crate) process: Arc<Process>,
    pub(crate) leasehold: Leasehold,
    pub(crate) rng: fastrand::Rng,
}

impl GuardLoop {
    /// Acquires, holds and releases locks until the simulation drains.
    pub(crate) async fn run(mut self, wants: Wants) {
        while !self.process.world.is_draining() && !self.process.is_killed() {
            let idle = crate::world::millis(self.process.world.plan.idle);
            self.sleep(0..idle).await;
            let (locks, mode) = self.choose(wants);
            let ops: Vec<(OpId, String)> =
                locks.into_iter().map(|lock| (self.process.new_op(), lock)).collect();
            self.acquire(&ops, mode).await;
            let ended = now();
            let mut state = self.process.world.state();
            state.ended.extend(ops.iter().map(|(op, _)| (*op, ended)));
        }
    }

    fn choose(&mut self, wants: Wants) -> (Vec<String>, Mode) {
        let hot = |number: u32| format!("hot-{number}");
        if matches!(wants, Wants::Hot) && self.process.world.plan.tasks && self.rng.u8(0..4) == 0 {
            return (vec![TASK_LOCK.to_owned()], Mode::Exclusive);
        }
        match wants {
            Wants::Hot => (vec![hot(self.rng.u32(0..HOT))], Mode::Exclusive),
            Wants::Several => ((0..HOT).map(hot).collect(), Mode::Exclusive),
            Wants::Shared if self.rng.u8(0..3) == 0 => (vec!["shared".to_owned()], Mode::Exclusive),
            Wants::Shared => (vec!["shared".to_owned()], Mode::Shared),
            Wants::Slots => (vec!["slots".to_owned()], Mode::Slots(2)),
        }
    }

    async fn acquire(&mut self, ops: &[(OpId, String)], mode: Mode) {
        let wait = (self.rng.u8(0..10) < 8).then(|| Duration::from_millis(self.rng.u64(1_000..90_000)));
        // Some callers drop the request before they have an answer.
        let dropped_after = match self.rng.u8(0..8) {
            0 => Duration::from_millis(self.rng.u64(1..20_000)),
            _ => Duration::MAX,
        };
        for ((_, op), lock) in ops {
            self.process.record(Event::Acquire { op: *op, lock: lock.clone(), mode });
        }
        let started = now();
        let builder = self.builder(ops, mode, wait);
        let answer = tokio::time::timeout(dropped_after, builder.acquire()).await;
        let limit = wait.unwrap_or_default() + CALL_LIMIT;
        if let Some((op, _)) = ops.first() {
            self.process.world.state().waiting.remove(op);
            audit::ended(&self.process, *op, "an acquire", started, limit);
        }
        let code = match answer {
            Ok(Ok(guard)) => return self.hold(ops, mode, guard).await,
            Ok(Err(error)) => error.code(),
            Err(_) => "DROPPED",
        };
        for ((_, op), _) in ops {
            self.process.record(Event::Refused { op: *op, code: code.to_owned() });
        }
    }

    fn builder(&self, ops: &[(OpId, String)], mode: Mode, wait: Option<Duration>) -> LockBuilder {
        let (first, rest) = ops.split_first().expect("a request has at least one lock");
        let (process, op, is_first) = (self.process.clone(), first.0.1, AtomicBool::new(rest.is_empty()));
        let lock = first.1.clone();
        let mut builder = self.leasehold.lock(first.1.as_str());
        for (_, lock) in rest {
            builder = builder.and(lock.as_str());
        }
        let builder =
            builder.ttl(self.process.world.plan.ttl).holder(holder_of_op(first.0)).on_wait(move |_, _| {
                if is_first.swap(false, Ordering::Relaxed) {
                    process.record(Event::Queued { op });
                    process.world.state().waiting.insert((process.number, op), lock.clone());
                }
            });
        let builder = match wait {
            Some(wait) => builder.wait(wait),
            None => builder,
        };
        match mode {
            Mode::Exclusive => builder,
            Mode::Shared => builder.shared(),
            Mode::Slots(slots) => builder.slots(slots),
        }
    }

    async fn hold(&mut self, ops: &[(OpId, String)], mode: Mode, guard: Guard) {
        let mut status = guard.watch();
        let until = status.borrow_and_update().valid_until.as_micros();
        let mut holds = Vec::new();
        for ((name, lease), (op, lock)) in guard.leases().into_iter().zip(ops) {
            debug_assert_eq!(name.as_str(), lock);
            let (id, token) = (lease.request.lease_id, lease.token);
            self.process.record(Event::Granted {
                op: op.1,
                lease: id.to_string(),
                token: token.get(),
                until,
            });
            holds.push((*op, Hold { lock: lock.clone(), lease: id, token, until, extended: now() }));
        }
        self.believe(&holds).await;
        let work = self.work(&holds, mode);
        let mut work = std::pin::pin!(work);
        let lost = loop {
            tokio::select! {
                biased;
                () = &mut work => break false,
                changed = status.changed() => {
                    let (state, until) = {
                        let status = status.borrow_and_update();
                        (status.state, status.valid_until.as_micros())
                    };
                    if changed.is_err() || state == GuardState::Lost {
                        break true;
                    }
                    if holds.iter().all(|(_, hold)| hold.until == until) {
                        continue;
                    }
                    for (op, hold) in &mut holds {
                        (hold.until, hold.extended) = (until, now());
                        self.process.record(Event::Extended { op: op.1, until });
                    }
                    self.believe(&holds).await;
                }
            }
        };
        if lost && !self.process.is_killed() {
            audit::lost(&self.process, &holds);
        }
        for (op, _) in &holds {
            self.process.world.state().holds.remove(op);
            self.process.record(Event::Ended { op: op.1, lost });
        }
        self.release(&holds, guard).await;
    }

    async fn believe(&self, holds: &[(OpId, Hold)]) {
        if self.process.is_killed() {
            return;
        }
        for (op, hold) in holds {
            self.process.world.state().holds.insert(*op, hold.clone());
            audit::believed(&self.process, *op, hold).await;
        }
    }

    /// Works under the locks: reads the resource behind each, and writes to it at the end.
    fn work(&self, holds: &[(OpId, Hold)], mode: Mode) -> impl Future<Output = ()> + use<> {
        let (process, holds) = (self.process.clone(), holds.to_vec());
        let mut rng = self.rng.clone();
        let ttl = process.world.plan.ttl;
        async move {
            let held = match rng.u8(0..10) {
                0..5 => Duration::from_millis(rng.u64(0..2_000)),
                5..8 => ttl.mul_f64(rng.f64()),
                _ => ttl.mul_f64(1.0 + 3.0 * rng.f64()),
            };
            let mut seen = Vec::new();
            if mode == Mode::Exclusive {
                for (op, hold) in &holds {
                    seen.push(process.world.sink(*op, &hold.lock, hold.token, None));
                }
            }
            tokio::time::sleep(held).await;
            // Not checked against the lease: rejecting stale writes is the task of the fence.
            if !process.is_killed() {
                for ((op, hold), seen) in holds.iter().zip(seen) {
                    if seen.is_some() {
                        process.world.sink(*op, &hold.lock, hold.token, seen);
                    }
                }
            }
        }
    }

    async fn release(&mut self, holds: &[(OpId, Hold)], guard: Guard) {
        if self.rng.u8(0..4) == 0 {
            drop(guard);
            return;
        }
        let (started, was_lost) = (now(), guard.state() == GuardState::Lost);
        let ttl = self.process.world.plan.ttl;
        let result = guard.release().await;
        let code = result.as_ref().err().map(|error| error.code().to_owned());
        for (op, hold) in holds {
            audit::ended(&self.process, *op, "a release", started, ttl + CALL_LIMIT);
            self.process.record(Event::Released { op: op.1, code: code.clone() });
            if !was_lost && now() < hold.until {
                audit::released(&self.process, *op, hold, result.as_ref().err()).await;
            }
        }
    }

    /// Ends the lease of a holder by force from time to time.
    pub(crate) async fn take_by_force(mut self) {
        while !self.process.world.is_draining() && !self.process.is_killed() {
            self.sleep(60_000..600_000).await;
            let lock = format!("hot-{}", self.rng.u32(0..HOT));
            let (Ok(by), Ok(reason)) = (Holder::new("operator"), Reason::new("simulated")) else { return };
            let Ok(status) = self.leasehold.locks().status(lock.as_str()).await else { continue };
            let Some(holder) = status.holders.first() else { continue };
            let ((_, op), token) = (self.process.new_op(), holder.token);
            self.process.world.state().forced.entry((lock.clone(), token.get())).or_insert_with(now);
            self.process.record(Event::Force { op, lock: lock.clone(), token: token.get() });
            let result = self.leasehold.locks().force_release(lock.as_str(), token, by, reason).await;
            let code = result.err().map(|error| error.code().to_owned());
            self.process.record(Event::Released { op, code });
        }
    }

    async fn sleep(&mut self, millis: std::ops::Range<u64>) {
        tokio::time::sleep(Duration::from_millis(self.rng.u64(millis))).await;
    }
}
