//! Decisions of a worker after reading the comments: the correct ones, and those of mutants.

use super::system::{Comment, GRACE, Stage, TTL};

/// Decision of a worker after reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Acquire,
    ReadAgain,
    GiveUp,
}

/// What a worker has read: the comments, the service's time, and the id of its own candidate.
pub(super) struct Snapshot<'a> {
    pub(super) comments: &'a [Comment],
    pub(super) now: u8,
    pub(super) own_id: u8,
}

/// Decisions of a worker; a mutant replaces one of them.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// Decision after reading the comments.
    pub(super) decide: fn(&Snapshot) -> Decision,
    /// Whether a claim keeps others out, at the service's time.
    pub(super) conflicts: fn(Comment, u8) -> bool,
    /// Time until which a holder relies on its lease, from the times at which the request was sent
    /// and its response was received, and the previous deadline. `None` if the lease is lost.
    pub(super) until: fn(Times) -> Option<u8>,
    /// Whether the worker reads after posting its candidate.
    pub(super) reads: bool,
    /// Whether a claim that has ended is read once more and deleted before the lock is acquired.
    pub(super) clears: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) sent: u8,
    pub(super) received: u8,
    pub(super) deadline: u8,
}

pub(super) const CORRECT: Rules = Rules { decide, conflicts, until: in_time, reads: true, clears: true };

fn others<'a>(
    snapshot: &'a Snapshot,
    conflicts: fn(Comment, u8) -> bool,
) -> impl Iterator<Item = &'a Comment> {
    snapshot
        .comments
        .iter()
        .filter(move |other| other.id != snapshot.own_id && conflicts(**other, snapshot.now))
}

fn decide(snapshot: &Snapshot) -> Decision {
    let mut others = others(snapshot, conflicts).peekable();
    // A list without the worker's own candidate is stale, and proves nothing.
    if !snapshot.comments.iter().any(|comment| comment.id == snapshot.own_id) {
        return Decision::ReadAgain;
    }
    if others.peek().is_none() {
        return Decision::Acquire;
    }
    let gives_way = others.any(|other| other.stage != Stage::Candidate || other.id < snapshot.own_id);
    if gives_way { Decision::GiveUp } else { Decision::ReadAgain }
}

fn conflicts(claim: Comment, now: u8) -> bool {
    claim.stage != Stage::Released && now < claim.updated + TTL + GRACE
}

fn in_time(times: Times) -> Option<u8> {
    (times.received < times.deadline).then_some(times.sent + TTL)
}

/// Mutant: the worker with the lowest id acquires the lock, and ignores everything else.
pub(super) fn lowest_id_wins(snapshot: &Snapshot) -> Decision {
    let lower = others(snapshot, conflicts).any(|other| other.id < snapshot.own_id);
    if lower { Decision::GiveUp } else { Decision::Acquire }
}

/// Mutant "assign, then verify": each worker that finds its own candidate acquires the lock.
pub(super) fn assign_then_verify(snapshot: &Snapshot) -> Decision {
    let there = snapshot.comments.iter().any(|comment| comment.id == snapshot.own_id);
    if there { Decision::Acquire } else { Decision::GiveUp }
}

/// Mutant: only holders conflict, candidates do not.
pub(super) fn ignores_candidates(snapshot: &Snapshot) -> Decision {
    let held = others(snapshot, conflicts).any(|other| other.stage == Stage::Held);
    if held { Decision::GiveUp } else { Decision::Acquire }
}

/// Mutant: trusts a list from before the worker's own candidate.
pub(super) fn trusts_stale_lists(snapshot: &Snapshot) -> Decision {
    match others(snapshot, conflicts).next() {
        None => Decision::Acquire,
        Some(_) => decide(snapshot),
    }
}

/// Mutant: takes whole seconds for exact times.
pub(super) fn no_margin(claim: Comment, now: u8) -> bool {
    claim.stage != Stage::Released && now < claim.updated + TTL
}

/// Mutant: claims never expire.
pub(super) fn no_expiry(claim: Comment, _now: u8) -> bool {
    claim.stage != Stage::Released
}

/// Mutant: a response counts however late it arrives, and from the time at which it arrives.
#[expect(clippy::unnecessary_wraps, reason = "it replaces a rule that may return None")]
pub(super) fn late_responses_count(times: Times) -> Option<u8> {
    Some(times.received + TTL)
}

/// Mutant: decides without the margin.
pub(super) fn decide_without_margin(snapshot: &Snapshot) -> Decision {
    match others(snapshot, no_margin).next() {
        None => Decision::Acquire,
        Some(_) => decide(snapshot),
    }
}

/// Mutant: decides as if claims never expired.
pub(super) fn decide_without_expiry(snapshot: &Snapshot) -> Decision {
    match others(snapshot, no_expiry).next() {
        None => decide(snapshot),
        Some(_) => Decision::GiveUp,
    }
}
