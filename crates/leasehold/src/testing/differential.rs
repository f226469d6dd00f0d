//! Random operations through an engine and through the rules in leasehold-model: all answers and
//! records must be equal.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use uuid::Uuid;

use super::random::{differs, play_all};
use super::{Fixture, TestClient};
use crate::model::{
    Acquire, BootId, Event, ForceRelease, Lease, LeaseId, LockName, LockOp, LockRecord, LockRequest, Outcome,
    Reason, Release, Renew, RequestRelease, Restarted, Sweep, Token, TokenFloor, Ttl, Withdraw,
};
use crate::store::{Cursor, EventRange, ListEvents, Peek, WaiterSubscription, Wakeup};

/// One step: the caller, its operation, the lock, and the time that passes before.
#[derive(Debug, Clone)]
struct Step {
    lock: usize,
    who: u128,
    what: What,
    pass_millis: u64,
}

#[derive(Debug, Clone)]
enum What {
    Ask(Ask),
    Renew { old_token: bool, ttl: Option<u64>, logged: bool },
    Release { old_token: bool, at_least: Option<u64> },
    Withdraw,
    RequestRelease { reason: bool },
    Force { old_token: bool },
    Sweep { dead: bool },
    Restarted,
    Forget,
}

/// Request for a lock; the times are in seconds.
#[derive(Debug, Clone)]
struct Ask {
    shared: bool,
    slots: u32,
    priority: i32,
    metadata: usize,
    ttl: u64,
    ticket_ttl: Option<u64>,
    steal_after: Option<u64>,
}

const LOCKS: [&str; 3] = ["one", "two", "two/three"];
const METADATA: [&[(&str, &str)]; 3] =
    [&[], &[("run", "7")], &[("user", "ada \"b\" \u{1F600}"), ("empty", "")]];

/// Runs `cases` random sequences of operations through fresh engines, and compares every outcome,
/// every record and the whole history with the rules. Panics with the shortest sequence that
/// differs.
#[track_caller]
pub fn agrees_with_the_rules<F>(cases: u32, fresh: impl Fn() -> F)
where
    F: Future<Output = Fixture>,
{
    play_all(cases, prop::collection::vec(step(), 1..60), fresh, &play);
}

fn step() -> impl Strategy<Value = Step> {
    let what = prop_oneof![
        8 => ask().prop_map(What::Ask),
        3 => (prop::bool::weighted(0.2), prop::option::weighted(0.2, 1..20_u64), prop::bool::weighted(0.3))
            .prop_map(|(old_token, ttl, logged)| What::Renew { old_token, ttl, logged }),
        4 => (prop::bool::weighted(0.2), prop::option::weighted(0.2, 1..30_u64))
            .prop_map(|(old_token, at_least)| What::Release { old_token, at_least }),
        1 => Just(What::Withdraw),
        1 => any::<bool>().prop_map(|reason| What::RequestRelease { reason }),
        1 => prop::bool::weighted(0.3).prop_map(|old_token| What::Force { old_token }),
        1 => any::<bool>().prop_map(|dead| What::Sweep { dead }),
        1 => Just(What::Restarted),
        1 => Just(What::Forget),
    ];
    let pass = prop_oneof![2 => Just(0), 3 => 1..3_000_u64, 1 => 3_000..12_000_u64];
    (0..LOCKS.len(), 1..6_u128, what, pass).prop_map(|(lock, who, what, pass_millis)| Step {
        lock,
        who,
        what,
        pass_millis,
    })
}

fn ask() -> impl Strategy<Value = Ask> {
    let ttl = prop_oneof![3 => Just(10), 1 => 2..20_u64];
    let ticket_ttl = prop::option::of(prop_oneof![3 => Just(5), 1 => 1..15_u64]);
    let steal_after = prop::option::weighted(0.1, 1..6_u64);
    (any::<bool>(), 1..4_u32, -2..3_i32, 0..METADATA.len(), ttl, ticket_ttl, steal_after).prop_map(
        |(shared, slots, priority, metadata, ttl, ticket_ttl, steal_after)| Ask {
            shared,
            slots,
            priority,
            metadata,
            ttl,
            ticket_ttl,
            steal_after,
        },
    )
}

async fn play(f: &Fixture, steps: &[Step]) -> Result<(), String> {
    let mut rules: BTreeMap<LockName, (LockRecord, Vec<Event>)> = BTreeMap::new();
    let mut waiters = Waiters::default();
    for (number, step) in steps.iter().enumerate() {
        f.clock.advance(Duration::from_millis(step.pass_millis));
        let client = f.client(step.who, LOCKS[step.lock]);
        if matches!(step.what, What::Forget) {
            forget(f, &mut rules).await.map_err(|error| format!("step {number}: {error}"))?;
            continue;
        }
        let (record, events) = rules
            .entry(client.lock.clone())
            .or_insert_with(|| (LockRecord::new(client.lock.clone()), Vec::new()));
        let op = step.op(&client, record);
        let op = if f.one.capabilities().trusts_process_state() { op } else { from_afar(op) };
        waiters.subscribe(&client, &op);
        let expected = record.apply(&op, f.clock.now());
        events.extend(expected.events);
        let handed_over = expected.handed_over;
        let store = if number % 2 == 0 { &f.one } else { &f.two };
        let outcome = store
            .locks()
            .apply(&client.lock, &op)
            .await
            .map_err(|error| format!("step {number}: {error}"))?;
        let (mut outcome, mut expected) = (outcome, expected.outcome);
        if record.version == 0 {
            // The token of a lock without a record depends on what the engine has forgotten.
            [&mut outcome, &mut expected].into_iter().for_each(without_token);
        }
        differs(&format!("outcome of step {number}"), &outcome, &expected)?;
        let stored = f.one.locks().get(&client.lock).await.map_err(|error| error.to_string())?;
        let expected = (record.version > 0).then(|| record.clone());
        differs(&format!("record after step {number}"), &stored, &expected)?;
        let now = f.clock.now();
        let peek = store.locks().peek(&client.lock, &client.id()).await.map_err(|error| error.to_string())?;
        let of_record = Peek::of(expected.as_ref(), &client.id(), now);
        differs(&format!("peek after step {number}"), &peek.lease, &of_record.lease)?;
        // An engine may wake its waiters too early, never too late.
        if of_record.wake_at.is_none_or(|wake_at| wake_at <= now) {
            differs(&format!("peek after step {number}"), &peek.is_due(), &true)?;
        }
        waiters.check(record, &handed_over).await.map_err(|why| format!("after step {number}: {why}"))?;
    }
    waiters.check_notifications().await?;
    for (lock, (_, events)) in &rules {
        let request =
            ListEvents { lock: Some(lock.clone()), span: EventRange::After(Cursor::start()), limit: 1000 };
        let page = f.two.locks().history(&request).await.map_err(|error| error.to_string())?;
        // For a lock that was forgotten and created again, an engine may return the newer part of
        // the history alone.
        let newer = page.items.len().saturating_sub(events.len());
        differs(&format!("history of {lock}"), &page.items[newer..].to_vec(), events)?;
    }
    Ok(())
}

#[derive(Default)]
struct Waiters(HashMap<(LockName, LeaseId), Waiter>);

struct Waiter {
    client: TestClient,
    subscription: WaiterSubscription,
    /// Tokens of the leases that the caller was granted.
    granted: BTreeSet<Token>,
}

impl Waiters {
    /// Subscribes a caller whose operation may create its ticket.
    fn subscribe(&mut self, client: &TestClient, op: &LockOp) {
        if matches!(op, LockOp::Acquire(acquire) if acquire.queue.is_some()) {
            let new = || Waiter {
                client: client.clone(),
                subscription: client.subscribe(),
                granted: BTreeSet::new(),
            };
            self.0.entry((client.lock.clone(), client.id())).or_insert_with(new);
        }
    }

    /// Checks that a waiter whose ticket has become a lease finds the lease with its next poll.
    async fn check(&mut self, record: &LockRecord, handed_over: &[Lease]) -> Result<(), String> {
        for lease in record.holders.iter().chain(handed_over) {
            let key = (record.name.clone(), lease.request.lease_id);
            if let Some(waiter) = self.0.get_mut(&key) {
                waiter.granted.insert(lease.token);
            }
        }
        for lease in handed_over {
            let id = lease.request.lease_id;
            let Some(waiter) = self.0.get_mut(&(record.name.clone(), id)) else { continue };
            let store = waiter.client.store.locks();
            let peek = store.peek(&record.name, &id).await.map_err(|error| error.to_string())?;
            differs("poll of a granted waiter", &peek.lease.as_ref(), &record.lease(&id))?;
            waiter.check_notification().await?;
        }
        Ok(())
    }

    async fn check_notifications(&mut self) -> Result<(), String> {
        for waiter in self.0.values_mut() {
            waiter.check_notification().await?;
        }
        Ok(())
    }
}

impl Waiter {
    /// Checks that a notification delivers no lease that the waiter was not granted. The
    /// notification itself may be late or lost.
    async fn check_notification(&mut self) -> Result<(), String> {
        if let Wakeup::Granted(granted) = self.subscription.next(Duration::ZERO).await {
            let lease = granted.lease;
            let was_granted =
                lease.request.lease_id == self.client.id() && self.granted.contains(&lease.token);
            differs(&format!("delivery of {lease:?} for {}", self.client.lock), &true, &was_granted)?;
        }
        Ok(())
    }
}

const IDLE: Ttl = Ttl::from_secs(5);

/// Runs a pass that forgets locks. Each engine decides when it forgets a lock; the forgotten locks
/// must be forgettable.
async fn forget(f: &Fixture, rules: &mut BTreeMap<LockName, (LockRecord, Vec<Event>)>) -> Result<(), String> {
    let text = |error: crate::Error| error.to_string();
    let forgotten = f.two.locks().forget(IDLE, 100).await.map_err(text)?;
    let (floor, mut gone) = (TokenFloor::default().raised(f.clock.now(), IDLE), 0);
    for (name, (record, events)) in rules.iter_mut() {
        if record.version > 0 && f.one.locks().get(name).await.map_err(text)?.is_none() {
            differs(&format!("forgetting of {record:?}"), &true, &record.is_forgettable(floor))?;
            *record = LockRecord::new(name.clone());
            events.clear();
            gone += 1;
        }
    }
    differs("locks that were forgotten", &forgotten, &gone)
}

fn without_token(outcome: &mut Outcome) {
    if let Outcome::NotHeld(not_held) = outcome {
        not_held.token = Token::default();
    }
}

/// Returns the operation without the parts that only an engine may issue.
fn from_afar(op: LockOp) -> LockOp {
    match op {
        LockOp::Acquire(Acquire { request, queue, steal_after }) => {
            let request = Arc::new(LockRequest { process: None, ..(*request).clone() });
            LockOp::Acquire(Acquire { request, queue, steal_after })
        }
        LockOp::Sweep(_) | LockOp::Restarted(_) => LockOp::Sweep(Sweep::default()),
        op => op,
    }
}

impl Step {
    fn op(&self, client: &TestClient, record: &LockRecord) -> LockOp {
        let lease_id = client.id();
        let held = record.lease(&lease_id).map(|lease| lease.token);
        let token = |old: bool| {
            if old { Token::default() } else { held.unwrap_or(record.token) }
        };
        let ttl = |seconds: Option<u64>| seconds.map(Ttl::from_secs);
        match self.what {
            What::Ask(ref ask) => {
                let mut client = client.clone().slots(ask.slots).priority(ask.priority);
                client.request.ttl = Ttl::from_secs(ask.ttl);
                if ask.shared {
                    client = client.shared();
                }
                for (key, value) in METADATA[ask.metadata] {
                    client = client.meta(key, value);
                }
                // Half of the callers appear as processes of a boot that may end.
                if self.who.is_multiple_of(2) {
                    client = client.of_boot(7);
                }
                let (queue, steal_after) = (ttl(ask.ticket_ttl), ttl(ask.steal_after));
                LockOp::Acquire(Acquire { request: Arc::new(client.request), queue, steal_after })
            }
            What::Renew { old_token, ttl: seconds, logged } => {
                let renew = Renew { lease_id, token: token(old_token), ttl: ttl(seconds) };
                if logged { LockOp::RenewLogged(renew) } else { LockOp::Renew(renew) }
            }
            What::Release { old_token, at_least } => {
                LockOp::Release(Release { lease_id, token: token(old_token), at_least: ttl(at_least) })
            }
            What::Withdraw => LockOp::Withdraw(Withdraw { lease_id }),
            What::RequestRelease { reason } => LockOp::RequestRelease(RequestRelease {
                token: held,
                by: client.request.holder.clone(),
                reason: reason.then(|| Reason::new("deploy").expect("a good reason")),
            }),
            What::Force { old_token } => LockOp::ForceRelease(ForceRelease {
                token: token(old_token),
                by: client.request.holder.clone(),
                reason: Reason::new("test").expect("a good reason"),
            }),
            What::Sweep { dead } => {
                LockOp::Sweep(Sweep { dead: if dead { vec![lease_id] } else { Vec::new() } })
            }
            What::Restarted => LockOp::Restarted(Restarted { boot: BootId(Uuid::from_u128(7)) }),
            What::Forget => unreachable!("it is about no lock in particular"),
        }
    }
}
