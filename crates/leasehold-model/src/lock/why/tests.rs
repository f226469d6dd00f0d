//! Tests of the explanation of a lock.

use std::sync::Arc;

use uuid::Uuid;

use crate::lock::why::{LockRemedy, LockSurroundings};
use crate::{
    Acquire, Event, ForceRelease, Holder, LeaseId, LockName, LockOp, LockRecord, LockRequest, Mode, Reason,
    Release, Renew, RequestRelease, Slots, Timestamp, Token, Ttl,
};

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(1_730_817_105_000_000 + seconds * 1_000_000)
}

fn id(number: u128) -> LeaseId {
    LeaseId::from_uuid(Uuid::from_u128(number))
}

fn holder(name: &str) -> Holder {
    Holder::new(name).unwrap()
}

/// Lock with its history.
struct Scene {
    record: LockRecord,
    events: Vec<Event>,
    dead: Vec<LeaseId>,
}

impl Scene {
    fn new() -> Self {
        let record = LockRecord::new(LockName::new("db").unwrap());
        Self { record, events: Vec::new(), dead: Vec::new() }
    }

    fn apply(&mut self, op: &LockOp, second: u64) {
        let applied = self.record.apply(op, at(second));
        self.events.splice(0..0, applied.events.into_iter().rev());
    }

    fn acquire(&mut self, number: u128, name: &str, mode: Mode, second: u64) {
        self.request(LockRequest { mode, ..LockRequest::new(id(number), holder(name), TTL) }, second);
    }

    fn request(&mut self, request: LockRequest, second: u64) {
        let queue = Some(Ttl::from_secs(60));
        let acquire = Acquire { request: Arc::new(request), queue, steal_after: None };
        self.apply(&LockOp::Acquire(acquire), second);
    }

    fn token(&self) -> Token {
        self.record.holders[0].token
    }

    fn renew(&mut self, number: u128, second: u64) {
        let renew = Renew { lease_id: id(number), token: self.token(), ttl: None };
        self.apply(&LockOp::Renew(renew), second);
    }

    fn around(&self, second: u64) -> LockSurroundings<'_> {
        LockSurroundings { now: at(second), dead: &self.dead, events: &self.events }
    }

    fn why(&self, second: u64) -> Vec<String> {
        let reasons = self.record.why(&self.around(second));
        reasons.iter().map(|reason| format!("{}: {}", reason.code(), reason.text(at(second)))).collect()
    }
}

const TTL: Ttl = Ttl::from_secs(30);

#[test]
fn a_lock_without_holder_says_why() {
    let mut scene = Scene::new();
    assert_eq!(
        scene.why(0),
        [
            "not_held: 'db' is not held.",
            "never_held: It was never held, or was forgotten since.",
            "no_waiter: No other caller waits for it."
        ]
    );
    scene.acquire(1, "ada", Mode::Exclusive, 0);
    let release = Release { lease_id: id(1), token: scene.token(), at_least: None };
    scene.apply(&LockOp::Release(release), 2);
    assert_eq!(scene.why(12)[1], "released: ada released it at 2024-11-05T14:31:47Z (10s ago).");
    scene.acquire(2, "ada", Mode::Exclusive, 20);
    let force =
        ForceRelease { token: scene.token(), by: holder("root"), reason: Reason::new("stuck").unwrap() };
    scene.apply(&LockOp::ForceRelease(force), 21);
    assert_eq!(
        scene.why(22)[1],
        "forced: root took it from ada by force at 2024-11-05T14:32:06Z (1s ago): stuck."
    );
    scene.events.clear();
    assert_eq!(scene.why(22)[1], "end_unknown: Its history no longer says how its last lease ended.");
}

#[test]
fn a_holder_that_stops_to_renew_is_late() {
    let mut scene = Scene::new();
    scene.acquire(1, "ada", Mode::Exclusive, 0);
    assert_eq!(scene.record.why(&scene.around(20))[1].code(), "not_renewed");
    scene.renew(1, 10);
    scene.renew(1, 20);
    assert_eq!(scene.record.why(&scene.around(35))[1].code(), "renewed");
    assert_eq!(
        scene.why(44)[1],
        "renewal_late: It was renewed 2 times, last 24s ago, and is late: its holder may be dead or cut off. It \
         lasts until 2024-11-05T14:32:35Z (in 6s)."
    );
    assert_eq!(scene.why(50)[1], "lease_expired: Its lease expired at 2024-11-05T14:32:35Z (0ms ago).");
    assert_eq!(scene.why(50)[3], "freed_by: The next acquire, or a sweep, frees it.");
}

#[test]
fn the_queue_is_explained_in_order() {
    let mut scene = Scene::new();
    scene.acquire(1, "ada", Mode::Shared, 0);
    scene.acquire(2, "bob", Mode::Shared, 0);
    scene.acquire(3, "eve", Mode::Exclusive, 5);
    scene.acquire(4, "fay", Mode::Shared, 7);
    let why = scene.why(10);
    assert_eq!(
        why[4..],
        [
            "waits: eve is next in the queue (exclusive, for 5s): it waits for ada and 1 other holder.",
            "waits: fay is number 2 in the queue (shared, for 3s): it waits for eve before it.",
            "freed_by: It becomes free when its 2 holders release it, at 2024-11-05T14:32:15Z (in 20s) unless \
             renewed, or by force."
        ],
        "{why:#?}"
    );
    assert_eq!(
        scene.record.remedies(&scene.around(10)).len(),
        5,
        "wait, queue, ask, and a forced release for each holder"
    );
}

#[test]
fn one_free_slot_lets_the_next_waiter_pass() {
    let mut scene = Scene::new();
    let slots = |number, name| LockRequest {
        slots: Slots::new(2).unwrap(),
        ..LockRequest::new(id(number), holder(name), TTL)
    };
    scene.request(slots(1, "ada"), 0);
    scene.request(slots(2, "bob"), 0);
    scene.request(slots(3, "eve"), 1);
    assert!(scene.why(2)[4].ends_with("it waits for ada and 1 other holder."), "{:#?}", scene.why(2));
    // The process of one holder has exited: the next operation removes its lease.
    scene.dead.push(id(1));
    let why = scene.why(2);
    assert_eq!(why[1], "process_exited: Its process has exited.");
    assert_eq!(
        why[4],
        "waits: eve is next in the queue (exclusive, in one of 2 slots, for 1s): the next operation grants it."
    );
}

#[test]
fn a_request_and_a_retained_lease_are_explained() {
    let mut scene = Scene::new();
    scene.acquire(1, "ada", Mode::Exclusive, 0);
    let by = holder("bob");
    scene.apply(&LockOp::RequestRelease(RequestRelease { token: None, by, reason: None }), 1);
    assert_eq!(
        scene.why(2)[2],
        "release_requested: bob asked it to stop 1s ago; it is notified at once if the store can, else at its \
         next renewal."
    );
    scene.renew(1, 3);
    assert!(scene.why(4)[2].ends_with("it was notified at its last renewal."));
    let release = Release { lease_id: id(1), token: scene.token(), at_least: Some(Ttl::from_secs(20)) };
    scene.apply(&LockOp::Release(release), 5);
    scene.dead.push(id(1));
    let why = scene.why(6);
    assert_eq!(
        why[1],
        "retained: Its work is done; the lease only blocks other holders until 2024-11-05T14:32:05Z (in 14s)."
    );
    assert_eq!(
        why.last().unwrap(),
        "freed_by: It becomes free at 2024-11-05T14:32:05Z (in 14s), or by force."
    );
}

#[test]
fn a_command_names_the_lock_as_a_shell_needs_it() {
    let name = LockName::new("it's mine").unwrap();
    assert_eq!(LockRemedy::Take.command("leasehold", &name), "leasehold run 'it'\\''s mine' -- COMMAND");
    let force = LockRemedy::Force { token: Token::default() };
    assert_eq!(
        force.command("leasehold", &LockName::new("a/b").unwrap()),
        "leasehold locks release a/b --force --token 0 --reason 'TEXT'"
    );
}
