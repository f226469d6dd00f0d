//! What a worker does with what it sees: the right way, and the wrong ones.

use super::system::{Comment, GRACE, Stage, TTL};

/// What a worker does after it has looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ruling {
    Take,
    LookAgain,
    GiveUp,
}

/// What a worker sees: the comments, the service's time, and its own flag.
pub(super) struct Sight<'a> {
    pub(super) comments: &'a [Comment],
    pub(super) now: u8,
    pub(super) mine: u8,
}

/// The decisions of a worker. Wrong ones replace one of them.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// What it does after it has looked.
    pub(super) judge: fn(&Sight) -> Ruling,
    /// Whether a claim keeps others out, at the service's time.
    pub(super) is_in_the_way: fn(Comment, u8) -> bool,
    /// Until when a holder counts on its lease: from what was sent, received, and the end it has counted on so far. None if
    /// it is lost.
    pub(super) until: fn(Times) -> Option<u8>,
    /// Whether it looks after its flag is up.
    pub(super) looks: bool,
    /// Whether a claim that is over is read once more and cleared away before the lock is taken.
    pub(super) clears: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) sent: u8,
    pub(super) received: u8,
    pub(super) deadline: u8,
}

pub(super) const RIGHT: Rules = Rules { judge, is_in_the_way, until: in_time, looks: true, clears: true };

fn others<'a>(sight: &'a Sight, in_the_way: fn(Comment, u8) -> bool) -> impl Iterator<Item = &'a Comment> {
    sight.comments.iter().filter(move |other| other.id != sight.mine && in_the_way(**other, sight.now))
}

fn judge(sight: &Sight) -> Ruling {
    let mut others = others(sight, is_in_the_way).peekable();
    // A list without our own flag is an old one, and tells nothing.
    if !sight.comments.iter().any(|comment| comment.id == sight.mine) {
        return Ruling::LookAgain;
    }
    if others.peek().is_none() {
        return Ruling::Take;
    }
    let gives_way = others.any(|other| other.stage != Stage::Raised || other.id < sight.mine);
    if gives_way { Ruling::GiveUp } else { Ruling::LookAgain }
}

fn is_in_the_way(claim: Comment, now: u8) -> bool {
    claim.stage != Stage::Released && now < claim.updated + TTL + GRACE
}

fn in_time(times: Times) -> Option<u8> {
    (times.received < times.deadline).then_some(times.sent + TTL)
}

/// "The lowest id wins": whoever has it looks at nothing else.
pub(super) fn lowest_id_wins(sight: &Sight) -> Ruling {
    let lower = others(sight, is_in_the_way).any(|other| other.id < sight.mine);
    if lower { Ruling::GiveUp } else { Ruling::Take }
}

/// "Assign, then verify": whoever finds itself there has it, and so does everybody else.
pub(super) fn finds_itself(sight: &Sight) -> Ruling {
    let there = sight.comments.iter().any(|comment| comment.id == sight.mine);
    if there { Ruling::Take } else { Ruling::GiveUp }
}

/// Only those who have it already are in the way.
pub(super) fn flags_do_not_count(sight: &Sight) -> Ruling {
    let held = others(sight, is_in_the_way).any(|other| other.stage == Stage::Held);
    if held { Ruling::GiveUp } else { Ruling::Take }
}

/// A list is believed although it is from before our own flag.
pub(super) fn believes_old_lists(sight: &Sight) -> Ruling {
    match others(sight, is_in_the_way).next() {
        None => Ruling::Take,
        Some(_) => judge(sight),
    }
}

/// Whole seconds are taken for exact times.
pub(super) fn no_margin(claim: Comment, now: u8) -> bool {
    claim.stage != Stage::Released && now < claim.updated + TTL
}

/// Nobody is ever dead.
pub(super) fn for_ever(claim: Comment, _now: u8) -> bool {
    claim.stage != Stage::Released
}

/// An answer counts however late it comes, and from when it comes.
#[expect(clippy::unnecessary_wraps, reason = "it stands in for a rule that may say no")]
pub(super) fn late_answers_count(times: Times) -> Option<u8> {
    Some(times.received + TTL)
}

/// The same judgement with another idea of who is in the way.
pub(super) fn judge_without_margin(sight: &Sight) -> Ruling {
    match others(sight, no_margin).next() {
        None => Ruling::Take,
        Some(_) => judge(sight),
    }
}

/// The same judgement, for whom nobody is ever dead.
pub(super) fn judge_for_ever(sight: &Sight) -> Ruling {
    match others(sight, for_ever).next() {
        None => judge(sight),
        Some(_) => Ruling::GiveUp,
    }
}
