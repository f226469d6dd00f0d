//! Deadlocks in random runs: none is reported where none can be, and none is missed.

use std::sync::Arc;

use leasehold_model::{
    Acquire, Deadlock, Holder, Lease, LeaseId, LeaseRef, LockName, LockOp, LockRecord, LockRequest, Mode,
    Outcome, Release, Slots, Timestamp, Ttl, Withdraw, deadlocks, suspected_locks,
};
use uuid::Uuid;

/// Small generator of pseudo-random numbers (xorshift), so that a run can be repeated by its number.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }

    fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }
}

/// Work that takes locks one after the other, each within the ones before, and then releases all.
struct Unit {
    /// Locks to take, in this order.
    plan: Vec<usize>,
    mode: Mode,
    slots: Slots,
    /// Requests so far: the last one may still wait.
    requests: Vec<LeaseId>,
    waits: bool,
    finished: bool,
}

struct World {
    locks: Vec<LockRecord>,
    units: Vec<Unit>,
    clock: u64,
    next_id: u128,
}

const TTL: Ttl = Ttl::from_secs(3600);
const START: u64 = 1_700_000_000_000_000;

fn id(number: u128) -> LeaseId {
    LeaseId::from_uuid(Uuid::from_u128(number))
}

fn alive(_: &Lease) -> bool {
    false
}

impl World {
    /// Creates units that take locks in any order.
    fn new(random: &mut Random) -> Self {
        let locks = 2 + random.below(4);
        let records = (0..locks).map(|lock| LockRecord::new(LockName::new(format!("l{lock}")).unwrap()));
        let mut world = Self { locks: records.collect(), units: Vec::new(), clock: 0, next_id: 1 };
        for _ in 0..2 + random.below(5) {
            world.add_unit(random);
        }
        world
    }

    fn add_unit(&mut self, random: &mut Random) {
        let mut plan: Vec<usize> = (0..self.locks.len()).filter(|_| random.one_in(2)).collect();
        for at in (1..plan.len()).rev() {
            plan.swap(at, random.below(at + 1));
        }
        let mode = if random.one_in(4) { Mode::Shared } else { Mode::Exclusive };
        let slots = if mode == Mode::Exclusive && random.one_in(3) { 2 } else { 1 };
        let slots = Slots::new(slots).unwrap();
        self.units.push(Unit { plan, mode, slots, requests: Vec::new(), waits: false, finished: false });
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(START + self.clock)
    }

    fn apply(&mut self, lock: usize, op: &LockOp) -> Outcome {
        self.clock += 1;
        let now = self.now();
        self.locks[lock].apply(op, now).outcome
    }

    /// Notices which waiting units were granted their lock.
    fn refresh(&mut self) {
        for unit in &mut self.units {
            if let (true, Some(id)) = (unit.waits, unit.requests.last()) {
                let lock = unit.plan[unit.requests.len() - 1];
                unit.waits = self.locks[lock].lease(id).is_none();
            }
        }
    }

    /// Makes one step of a unit; returns whether it could.
    fn step(&mut self, at: usize) -> bool {
        self.refresh();
        let unit = &self.units[at];
        if unit.waits || unit.finished {
            return false;
        }
        match unit.plan.get(unit.requests.len()).copied() {
            Some(lock) => self.request(at, lock),
            None => self.finish(at),
        }
        true
    }

    fn request(&mut self, at: usize, lock: usize) {
        let lease_id = id(self.next_id);
        self.next_id += 1;
        let unit = &mut self.units[at];
        let mut request = LockRequest::new(lease_id, Holder::new(format!("u{at}")).unwrap(), TTL);
        (request.mode, request.slots) = (unit.mode, unit.slots);
        request.metadata.set_within(unit.requests.iter().map(LeaseRef::of));
        unit.requests.push(lease_id);
        let acquire = Acquire { request: Arc::new(request), queue: Some(TTL), steal_after: None };
        let outcome = self.apply(lock, &LockOp::Acquire(acquire));
        self.units[at].waits = matches!(outcome, Outcome::Queued(_));
    }

    /// Ends the work of a unit, from the last lock to the first.
    fn finish(&mut self, at: usize) {
        self.units[at].finished = true;
        while let Some(lease_id) = self.units[at].requests.pop() {
            let lock = self.units[at].plan[self.units[at].requests.len()];
            match self.locks[lock].lease(&lease_id).map(|lease| lease.token) {
                Some(token) => {
                    self.apply(lock, &LockOp::Release(Release { lease_id, token, at_least: None }));
                }
                None => _ = self.apply(lock, &LockOp::Withdraw(Withdraw { lease_id })),
            }
        }
    }

    /// Gives up the last request of a unit that waits. It holds the rest until its next step.
    fn give_up(&mut self, at: usize) {
        let unit = &mut self.units[at];
        let lease_id = unit.requests.pop().expect("the unit waits for a lock");
        let lock = unit.plan[unit.requests.len()];
        unit.plan.truncate(unit.requests.len());
        unit.waits = false;
        self.apply(lock, &LockOp::Withdraw(Withdraw { lease_id }));
    }

    /// Whether a request for the lock might make the unit wait for itself: whether a holder or a waiter of
    /// the lock waits, in any way, for the unit.
    fn may_close_ring(&self, at: usize, lock: usize) -> bool {
        let owner = |id: &LeaseId| self.units.iter().position(|unit| unit.requests.contains(id));
        let entries = |lock: usize, before: Option<&LeaseId>| -> Vec<usize> {
            let record = &self.locks[lock];
            let tickets = record.waiters.iter().map(|ticket| &ticket.request.lease_id);
            let before = tickets.take_while(|id| Some(*id) != before);
            record
                .holders
                .iter()
                .map(|lease| &lease.request.lease_id)
                .chain(before)
                .filter_map(owner)
                .collect()
        };
        let (mut seen, mut next) = (Vec::new(), entries(lock, None));
        while let Some(unit) = next.pop() {
            if unit == at {
                return true;
            }
            if !seen.contains(&unit) && self.units[unit].waits {
                seen.push(unit);
                let own = &self.units[unit];
                next.extend(entries(own.plan[own.requests.len() - 1], own.requests.last()));
            }
        }
        false
    }

    /// Changes something, as any of the processes may at any time. No unit ever waits for itself.
    fn change(&mut self, random: &mut Random) {
        self.refresh();
        let at = random.below(self.units.len());
        let unit = &self.units[at];
        if unit.finished {
            self.units.swap_remove(at);
            self.add_unit(random);
        } else if unit.waits {
            if random.one_in(4) {
                self.give_up(at);
            }
        } else {
            match unit.plan.get(unit.requests.len()).copied() {
                Some(lock) if self.may_close_ring(at, lock) => self.finish(at),
                _ => _ = self.step(at),
            }
        }
    }

    /// Reads locks one after the other, while the units go on.
    fn read(&mut self, random: &mut Random, wanted: Option<&[LockName]>) -> Vec<LockRecord> {
        let mut read = Vec::new();
        for lock in 0..self.locks.len() {
            for _ in 0..random.below(7) {
                self.change(random);
            }
            let record = &self.locks[lock];
            if wanted.map_or(!record.waiters.is_empty(), |wanted| wanted.contains(&record.name)) {
                read.push(record.clone());
            }
        }
        read
    }

    /// Searches as the client does, while the units go on. Returns also what one reading alone shows.
    fn search(&mut self, random: &mut Random) -> (Vec<Deadlock>, Vec<Deadlock>) {
        let first = self.read(random, None);
        let now = self.now();
        let suspects = suspected_locks(&first, now, alive);
        let second = self.read(random, Some(&suspects));
        (deadlocks(&first, &first, now, alive), deadlocks(&first, &second, self.now(), alive))
    }
}

#[test]
fn runs_without_a_deadlock_cause_no_alarm_whatever_happens_meanwhile() {
    let mut false_alarms_of_one_reading = 0;
    for seed in 1..=4000 {
        let mut random = Random::new(seed);
        let mut world = World::new(&mut random);
        for _ in 0..8 {
            let (once, twice) = world.search(&mut random);
            assert_eq!(twice, [], "run {seed}");
            false_alarms_of_one_reading += once.len();
        }
    }
    // Locks that are read one after the other may show a ring that never was. If that never happened here,
    // the test would prove nothing.
    assert!(false_alarms_of_one_reading >= 10, "only {false_alarms_of_one_reading}");
}

#[test]
fn every_deadlock_is_found_and_every_ring_is_one() {
    let (mut deadlocked, mut free) = (0, 0);
    for seed in 1..=2000 {
        let mut random = Random::new(seed);
        let mut world = World::new(&mut random);
        // Until no unit can go on: then the waiting ones are deadlocked.
        loop {
            world.refresh();
            let can_step = |at: &usize| !world.units[*at].waits && !world.units[*at].finished;
            let able: Vec<usize> = (0..world.units.len()).filter(can_step).collect();
            if able.is_empty() {
                break;
            }
            assert!(world.step(able[random.below(able.len())]));
        }
        let waits = world.units.iter().any(|unit| unit.waits);
        let found = deadlocks(&world.locks, &world.locks, world.now(), alive);
        assert_eq!(waits, !found.is_empty(), "run {seed}: {found:?}");
        for deadlock in &found {
            assert_is_ring(&world, deadlock);
        }
        deadlocked += usize::from(waits);
        free += usize::from(!waits);
    }
    assert!(deadlocked > 100 && free > 100, "{deadlocked} runs had a deadlock, {free} had none");
}

/// Checks that each wait of a ring waits for the next one: the records say so.
fn assert_is_ring(world: &World, deadlock: &Deadlock) {
    let waits = &deadlock.waits;
    for (at, wait) in waits.iter().enumerate() {
        let next = &waits[(at + 1) % waits.len()];
        let record = world.locks.iter().find(|record| record.name == wait.lock).unwrap();
        let place = |lease: LeaseRef| {
            record.waiters.iter().position(|ticket| LeaseRef::of(&ticket.request.lease_id) == lease)
        };
        let own = place(wait.lease).expect("the waiter is in the queue");
        match &next.holds {
            Some(held) => {
                assert_eq!(held.lock, wait.lock);
                assert!(record.holders.iter().any(|lease| lease.token == held.token), "{deadlock}");
                assert_eq!(held.holder, next.waiter, "the next one made its request within that lease");
            }
            None => {
                assert_eq!(next.lock, wait.lock);
                assert!(place(next.lease).expect("the next one is in the same queue") < own, "{deadlock}");
            }
        }
    }
}

/// Returns a lock with a holder, and a waiter whose request was made within the lease `within`.
fn crossed(name: &str, held: u128, waits: u128, within: u128, waiter_owner: Option<&str>) -> LockRecord {
    let mut record = LockRecord::new(LockName::new(name).unwrap());
    for (number, within) in [(held, None), (waits, Some(within))] {
        let mut request = LockRequest::new(id(number), Holder::new(format!("h{number}")).unwrap(), TTL);
        request.metadata.set_within(within.map(|within| LeaseRef::of(&id(within))));
        if let (Some(owner), Some(_)) = (waiter_owner, within) {
            request.metadata.set("token", owner).unwrap();
        }
        let acquire = Acquire { request: Arc::new(request), queue: Some(TTL), steal_after: None };
        record.apply(&LockOp::Acquire(acquire), Timestamp::from_micros(START));
    }
    record
}

#[test]
fn a_ring_names_its_waits_and_the_command_that_avoids_it() {
    // h1 holds a, and h3 within it waits for b. h2 holds b, and h4 within it waits for a.
    let locks = [crossed("a", 1, 4, 2, None), crossed("b", 2, 3, 1, None)];
    let now = Timestamp::from_micros(START + 1);
    let found = deadlocks(&locks, &locks, now, alive);
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].to_string(),
        "deadlock of 'a' and 'b': h2 holds 'b', and h4 within it waits for 'a'; h1 holds 'a', and h3 within it \
         waits for 'b'"
    );
    assert_eq!(found[0].remedy("leasehold").unwrap(), "leasehold run a --with b -- COMMAND");
    // A lease whose process has exited ends.
    let exited = |lease: &Lease| lease.request.holder.as_str() == "h1";
    assert_eq!(deadlocks(&locks, &locks, now, exited), []);
    // What only one reading contains proves nothing.
    assert_eq!(deadlocks(&locks[..1], &locks, now, alive), []);
    assert_eq!(deadlocks(&locks, &locks, now.plus(TTL), alive), [], "all leases have expired");
}

#[test]
fn another_caller_cannot_declare_that_a_holder_waits() {
    let locks = [crossed("a", 1, 4, 2, Some("mallory")), crossed("b", 2, 3, 1, Some("mallory"))];
    assert_eq!(deadlocks(&locks, &locks, Timestamp::from_micros(START + 1), alive), []);
}

#[test]
fn a_request_within_its_own_lock_is_a_ring_of_one() {
    let locks = [crossed("a", 1, 2, 1, None)];
    let found = deadlocks(&locks, &locks, Timestamp::from_micros(START + 1), alive);
    assert_eq!(found[0].to_string(), "deadlock of 'a': h1 holds 'a', and h2 within it waits for 'a'");
    assert_eq!(found[0].remedy("leasehold"), None);
}
