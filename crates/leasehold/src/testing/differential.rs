//! Random operations through an engine and through the rules in leasehold-model: all answers and
//! records must be equal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use uuid::Uuid;

use super::random::{differs, play_all};
use super::{Fixture, Player};
use crate::model::{
    Acquire, Ask, BootId, Event, ForceRelease, Leave, LockName, LockOp, LockRecord, Outcome, Reason, Release,
    Renew, RequestRelease, Restarted, Sweep, Token, TokenFloor, Ttl,
};
use crate::store::{Cursor, EventRange, ListEvents, Peek};

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
    Ask { shared: bool, slots: u32, priority: i32, in_line: bool, thief: bool },
    Renew { old_token: bool, ttl: Option<u64>, logged: bool },
    Release { old_token: bool, at_least: Option<u64> },
    Leave,
    RequestRelease,
    Force { old_token: bool },
    Sweep { dead: bool },
    Restarted,
    Forget,
}

const LOCKS: [&str; 2] = ["one", "two"];

/// Runs `cases` random sequences of operations through fresh engines, and compares every outcome,
/// every record and the whole history with the rules. Panics with the shortest sequence that
/// differs.
pub fn agrees_with_the_rules<F>(cases: u32, fresh: impl Fn() -> F)
where
    F: Future<Output = Fixture>,
{
    play_all(cases, prop::collection::vec(step(), 1..60), fresh, &play);
}

fn step() -> impl Strategy<Value = Step> {
    let what = prop_oneof![
        8 => (any::<bool>(), 1..3_u32, -1..2_i32, any::<bool>(), prop::bool::weighted(0.1)).prop_map(
            |(shared, slots, priority, in_line, thief)| What::Ask { shared, slots, priority, in_line, thief }
        ),
        3 => (prop::bool::weighted(0.2), prop::option::weighted(0.2, 1..20_u64), prop::bool::weighted(0.3))
            .prop_map(|(old_token, ttl, logged)| What::Renew { old_token, ttl, logged }),
        4 => (prop::bool::weighted(0.2), prop::option::weighted(0.2, 1..30_u64))
            .prop_map(|(old_token, at_least)| What::Release { old_token, at_least }),
        1 => Just(What::Leave),
        1 => Just(What::RequestRelease),
        1 => prop::bool::weighted(0.3).prop_map(|old_token| What::Force { old_token }),
        1 => any::<bool>().prop_map(|dead| What::Sweep { dead }),
        1 => Just(What::Restarted),
        1 => Just(What::Forget),
    ];
    let pass = prop_oneof![2 => Just(0), 3 => 1..3_000_u64, 1 => 3_000..12_000_u64];
    (0..LOCKS.len(), 1..5_u128, what, pass).prop_map(|(lock, who, what, pass_millis)| Step {
        lock,
        who,
        what,
        pass_millis,
    })
}

async fn play(f: &Fixture, steps: &[Step]) -> Result<(), String> {
    let mut rules: BTreeMap<LockName, (LockRecord, Vec<Event>)> = BTreeMap::new();
    for (number, step) in steps.iter().enumerate() {
        f.clock.advance(Duration::from_millis(step.pass_millis));
        let player = f.player(step.who, LOCKS[step.lock]);
        if matches!(step.what, What::Forget) {
            forget(f, &mut rules).await.map_err(|error| format!("step {number}: {error}"))?;
            continue;
        }
        let (record, events) = rules
            .entry(player.lock.clone())
            .or_insert_with(|| (LockRecord::new(player.lock.clone()), Vec::new()));
        let op = step.op(&player, record);
        let op = if f.one.capabilities().believes_in_processes() { op } else { from_afar(op) };
        let expected = record.apply(&op, f.clock.now());
        events.extend(expected.events);
        let store = if number % 2 == 0 { &f.one } else { &f.two };
        let outcome = store
            .locks()
            .apply(&player.lock, &op)
            .await
            .map_err(|error| format!("step {number}: {error}"))?;
        let (mut outcome, mut expected) = (outcome, expected.outcome);
        if record.version == 0 {
            // The token of a lock without a record depends on what the engine has forgotten.
            [&mut outcome, &mut expected].into_iter().for_each(without_token);
        }
        differs(&format!("outcome of step {number}"), &outcome, &expected)?;
        let stored = f.one.locks().get(&player.lock).await.map_err(|error| error.to_string())?;
        let expected = (record.version > 0).then(|| record.clone());
        differs(&format!("record after step {number}"), &stored, &expected)?;
        let now = f.clock.now();
        let peek = store.locks().peek(&player.lock, &player.id()).await.map_err(|error| error.to_string())?;
        let of_record = Peek::of(expected.as_ref(), &player.id(), now);
        differs(&format!("peek after step {number}"), &peek.lease, &of_record.lease)?;
        // An engine may wake its waiters too early, never too late.
        if of_record.wake_at.is_none_or(|wake_at| wake_at <= now) {
            differs(&format!("peek after step {number}"), &peek.is_due(), &true)?;
        }
    }
    for (lock, (_, events)) in &rules {
        let ask =
            ListEvents { lock: Some(lock.clone()), span: EventRange::After(Cursor::start()), limit: 1000 };
        let page = f.two.locks().history(&ask).await.map_err(|error| error.to_string())?;
        // For a lock that was forgotten and created again, an engine may return the newer part of
        // the history alone.
        let newer = page.items.len().saturating_sub(events.len());
        differs(&format!("history of {lock}"), &page.items[newer..].to_vec(), events)?;
    }
    Ok(())
}

/// Minimum time without a grant before a lock is forgotten.
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
        LockOp::Acquire(Acquire { ask, queue, steal_after }) => {
            let ask = Arc::new(Ask { process: None, ..(*ask).clone() });
            LockOp::Acquire(Acquire { ask, queue, steal_after })
        }
        LockOp::Sweep(_) | LockOp::Restarted(_) => LockOp::Sweep(Sweep::default()),
        op => op,
    }
}

impl Step {
    fn op(&self, player: &Player, record: &LockRecord) -> LockOp {
        let lease_id = player.id();
        let held = record.lease(&lease_id).map(|lease| lease.token);
        let token = |old: bool| {
            if old { Token::default() } else { held.unwrap_or(record.token) }
        };
        let ttl = |seconds: Option<u64>| seconds.map(Ttl::from_secs);
        match self.what {
            What::Ask { shared, slots, priority, in_line, thief } => {
                let mut player = player.clone().slots(slots).priority(priority);
                if shared {
                    player = player.shared();
                }
                // Half of the callers appear as processes of a boot that may end.
                if self.who.is_multiple_of(2) {
                    player = player.of_boot(7);
                }
                let (queue, steal_after) =
                    (in_line.then(|| Ttl::from_secs(5)), thief.then(|| Ttl::from_secs(3)));
                LockOp::Acquire(Acquire { ask: Arc::new(player.ask), queue, steal_after })
            }
            What::Renew { old_token, ttl: seconds, logged } => {
                let renew = Renew { lease_id, token: token(old_token), ttl: ttl(seconds) };
                if logged { LockOp::RenewLogged(renew) } else { LockOp::Renew(renew) }
            }
            What::Release { old_token, at_least } => {
                LockOp::Release(Release { lease_id, token: token(old_token), at_least: ttl(at_least) })
            }
            What::Leave => LockOp::Leave(Leave { lease_id }),
            What::RequestRelease => LockOp::RequestRelease(RequestRelease {
                token: held,
                by: player.ask.holder.clone(),
                reason: None,
            }),
            What::Force { old_token } => LockOp::ForceRelease(ForceRelease {
                token: token(old_token),
                by: player.ask.holder.clone(),
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
