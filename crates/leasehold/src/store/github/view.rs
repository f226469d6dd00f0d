//! View of all comments of an issue at one point in time: conflicting claims, the lock's record and
//! its history.

use std::collections::BTreeMap;

use super::answers::Comment;
use super::claim::{Asking, Claim, Found, Gone, How, Says};
use super::tasks::Record;
use crate::model::{
    Asked, Conflict, Event, EventKind, HeldBy, Holder, Lease, LeaseId, LeaseRef, LockName, LockRecord, Mode,
    NotHeld, Slots, Timestamp, Token, Ttl,
};

/// Maximum time in which a posted candidate has to become a lease.
pub(super) const RAISED: Ttl = Ttl::from_secs(60);
/// Margin after its end for which a claim still keeps other clients out: one second because
/// GitHub's times are whole seconds, the rest for clocks of the service that differ.
pub(super) const GRACE: Ttl = Ttl::from_secs(5);

/// Combined content of an issue's comments.
#[derive(Debug, Clone)]
pub(super) struct View {
    /// Time of the read, by the service's clock.
    pub(super) now: Timestamp,
    /// Number of all comments, including those that leasehold did not write.
    pub(super) count: usize,
    posts: Vec<Post>,
}

/// Comment that leasehold wrote.
#[derive(Debug, Clone)]
struct Post {
    id: u64,
    author: String,
    created_at: Timestamp,
    updated_at: Timestamp,
    /// Content of the comment; `None` if it cannot be parsed.
    says: Option<Says>,
}

/// Newest record of a task, and the claim that contains it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    /// Comment that contains the record.
    pub(super) id: u64,
    pub(super) record: &'a Record,
    /// Claim under which the task runs, if that claim is held.
    pub(super) held: Option<&'a Claim>,
    /// Last edit of the comment, which is the last heartbeat of a held claim.
    pub(super) seen: Timestamp,
}

impl Known<'_> {
    /// Returns the end of the lease under which the task runs, if its claim is held.
    pub(super) fn ends(&self) -> Option<Timestamp> {
        self.held.map(|claim| self.seen.plus(claim.ttl))
    }
}

/// Claim that may keep other clients out.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    pub(super) id: u64,
    pub(super) author: String,
    pub(super) stage: Stage,
    /// Content of the claim; `None` if it cannot be parsed.
    pub(super) claim: Option<Claim>,
    /// Time of the last heartbeat.
    pub(super) seen: Timestamp,
    /// Time from which the claim does not count for its holder.
    pub(super) ends: Timestamp,
}

/// Stage of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Raised,
    Held,
    /// Released, but retained for its `at_least` time.
    Kept,
    /// Changed so that it cannot be parsed.
    Garbage,
}

impl Standing {
    /// Whether the claim keeps other clients out. A held claim that had no heartbeat for
    /// `steal_after` does not. [`GRACE`] is added to both times.
    pub(super) fn is_in_the_way(&self, now: Timestamp, steal_after: Option<Ttl>) -> bool {
        let stale = |after: Ttl| self.stage == Stage::Held && self.seen.plus(after).plus(GRACE) <= now;
        now < self.ends.plus(GRACE) && !steal_after.is_some_and(stale)
    }

    /// Whether the claim belongs to the request with this lease id.
    pub(super) fn is_of(&self, id: &LeaseId) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.lease_id == *id)
    }

    pub(super) fn held_by(&self) -> HeldBy {
        let claim = self.claim.as_ref();
        let unreadable =
            || Holder::new(format!("comment {}, which cannot be read", self.id)).expect("a short text");
        HeldBy {
            holder: claim.map_or_else(unreadable, |claim| claim.holder.clone()),
            lease: claim.map(|claim| LeaseRef::of(&claim.lease_id)),
            mode: Mode::Exclusive,
            token: claim.map(|claim| claim.token).unwrap_or_default(),
            since: claim.map_or(self.seen, |claim| claim.acquired_at.max(Timestamp::default())),
            until: self.ends,
        }
    }
}

/// Maximum time by which a token may be ahead of GitHub's clock.
const AHEAD: Ttl = Ttl::from_secs(24 * 3600);

impl View {
    /// Creates a view of the comments that `is_trusted` accepts.
    pub(super) fn new(now: Timestamp, comments: Vec<Comment>, is_trusted: impl Fn(&Comment) -> bool) -> Self {
        let count = comments.len();
        let highest = now.plus(AHEAD);
        let ours = comments.into_iter().filter(is_trusted);
        let ours = ours.filter_map(|comment| Post::read(comment, highest));
        Self { now, count, posts: ours.collect() }
    }

    /// Creates the view of an issue without comments.
    pub(super) const fn empty(now: Timestamp) -> Self {
        Self { now, count: 0, posts: Vec::new() }
    }

    /// Returns the same view at another time; valid only if no comment has changed until then.
    pub(super) fn at(&self, now: Timestamp) -> Self {
        Self { now, ..self.clone() }
    }

    /// Returns the claims that may keep other clients out, by ascending id. A comment that cannot
    /// be parsed counts for `unread` after its last edit.
    pub(super) fn standing(&self, unread: Ttl) -> Vec<Standing> {
        let forced: Vec<Token> =
            self.gone().filter(|gone| gone.how == How::Forced).map(|gone| gone.token).collect();
        let stands = |post: &Post| {
            let (stage, claim, ends) = match &post.says {
                None => (Stage::Garbage, None, post.updated_at.plus(unread)),
                Some(Says::Raised(claim)) => {
                    (Stage::Raised, Some(claim), post.updated_at.plus(claim.ttl.min(RAISED)))
                }
                // The comment of a forced release ends the lease in one step; deleting the holder's
                // comment is only cleanup.
                Some(Says::Held(claim)) if forced.contains(&claim.token) => return None,
                Some(Says::Held(claim)) => (Stage::Held, Some(claim), post.updated_at.plus(claim.ttl)),
                Some(Says::Released(claim)) => (Stage::Kept, Some(claim), claim.until?),
                Some(Says::Asked(_) | Says::Ended(_)) => return None,
            };
            let (claim, author) = (claim.cloned(), post.author.clone());
            Some(Standing { id: post.id, author, stage, claim, seen: post.updated_at, ends })
        };
        self.posts.iter().filter_map(stands).collect()
    }

    /// Returns the newest token.
    pub(super) fn token(&self) -> Token {
        self.posts.iter().filter_map(|post| post.says.as_ref()).map(Says::highest).max().unwrap_or_default()
    }

    /// Returns the logins that are assigned without a lease, according to the newest claim.
    pub(super) fn left_assigned(&self) -> &[String] {
        let claims = self.posts.iter().filter_map(|post| match &post.says {
            Some(Says::Held(claim) | Says::Released(claim)) => Some((claim.token, post.id, claim)),
            _ => None,
        });
        let newest = claims.max_by_key(|(token, id, _)| (*token, *id));
        newest.map_or(&[], |(_, _, claim)| claim.left_assigned.as_slice())
    }

    /// Returns the newest record of the task on this issue, in the order of tokens.
    pub(super) fn task(&self) -> Option<Known<'_>> {
        let known = |post: &'_ Post| {
            let says = post.says.as_ref()?;
            let record = says.task()?;
            Some((says.highest(), record.version, post.id))
        };
        let newest =
            self.posts.iter().filter_map(|post| Some((known(post)?, post))).max_by_key(|(key, _)| *key);
        let (_, post) = newest?;
        let says = post.says.as_ref()?;
        let held = match says {
            // A claim that holds the issue for another purpose does not hold the task.
            Says::Held(claim) if Some(claim.token) == says.task().map(|record| record.token) => Some(claim),
            _ => None,
        };
        Some(Known { id: post.id, record: says.task()?, held, seen: post.updated_at })
    }

    /// Whether a live candidate exists: its client may be about to delete a claim that it has read
    /// as ended.
    pub(super) fn is_contested(&self) -> bool {
        let up =
            |standing: &Standing| standing.stage == Stage::Raised && standing.is_in_the_way(self.now, None);
        self.standing(RAISED).iter().any(up)
    }

    /// Returns the latest release request for the lease with this token.
    pub(super) fn asked(&self, token: Token) -> Option<Asked> {
        let asked = |(post, asking): (&Post, &Asking)| Asked {
            by: asking.by.clone(),
            reason: asking.reason.clone(),
            at: post.created_at,
        };
        self.askings().filter(|(_, asking)| asking.token == token).last().map(asked)
    }

    /// Returns the leases that are held, and those that are retained after their release.
    fn leases(&self) -> impl Iterator<Item = Lease> {
        let standing = self.standing(RAISED).into_iter();
        standing.filter_map(|standing| match (standing.stage, &standing.claim) {
            (Stage::Held | Stage::Kept, Some(claim)) => {
                Some(claim.lease(standing.seen, self.asked(claim.token)))
            }
            _ => None,
        })
    }

    /// Returns the lock as a record; `None` if no comment shows a current or an ended lease, or a
    /// release request.
    pub(super) fn record(&self, name: &LockName) -> Option<LockRecord> {
        let changes = |post: &Post| match &post.says {
            Some(Says::Held(claim)) => 1 + claim.beat + claim.took.len() as u64,
            Some(Says::Released(claim)) => 2 + claim.beat + claim.took.len() as u64,
            Some(Says::Asked(_) | Says::Ended(_)) => 1,
            Some(Says::Raised(_)) | None => 0,
        };
        let version = self.posts.iter().map(changes).sum();
        let record = LockRecord { token: self.token(), version, ..LockRecord::new(name.clone()) };
        (version > 0).then(|| LockRecord { holders: self.leases().collect(), ..record })
    }

    /// Returns the answer to a request whose lease id and token match no lease.
    pub(super) fn not_held(&self) -> NotHeld {
        let live = self.leases().filter(|lease| self.now < lease.expires_at);
        NotHeld { token: self.token(), holders: live.map(|lease| HeldBy::from(&lease)).collect() }
    }

    /// Returns the history in order, each event with a number that does not change.
    pub(super) fn events(&self, name: &LockName) -> Vec<(u64, Event)> {
        let mut lives: BTreeMap<Token, Life> = BTreeMap::new();
        for post in &self.posts {
            if let Some(Says::Held(claim) | Says::Released(claim)) = &post.says {
                let end = matches!(post.says, Some(Says::Released(_))).then(|| End {
                    kind: EventKind::Released,
                    at: post.updated_at,
                    until: claim.until,
                    by: None,
                    reason: None,
                });
                lives.insert(
                    claim.token,
                    Life::new(claim.lease_id, &claim.holder, claim.acquired_at, claim.beat, end),
                );
            }
        }
        for gone in self.gone() {
            let kind = match gone.how {
                How::Expired => EventKind::Expired,
                How::Stolen => EventKind::Stolen,
                How::Forced => EventKind::Forced,
            };
            let end =
                End { kind, at: gone.at, until: None, by: gone.by.clone(), reason: gone.reason.clone() };
            lives.insert(
                gone.token,
                Life::new(gone.lease_id, &gone.holder, gone.acquired_at, gone.beat, Some(end)),
            );
        }
        let mut events = Vec::new();
        for (token, life) in &lives {
            let asked = self.askings().filter(|(_, asking)| asking.token == *token);
            let asked = asked.map(|(post, asking)| End {
                kind: EventKind::Asked,
                at: post.created_at,
                until: None,
                by: Some(asking.by.clone()),
                reason: asking.reason.clone(),
            });
            // The last number of a lease is reserved for its end. Release requests that exceed the
            // numbers in between are left out.
            let asked = (1..LAST).zip(asked);
            let begin =
                End { kind: EventKind::Acquired, at: life.since, until: None, by: None, reason: None };
            let all = [(0, begin)].into_iter().chain(asked).chain(life.end.clone().map(|end| (LAST, end)));
            events.extend(
                all.map(|(number, end)| (token.get() * PLACES + number, life.event(name, *token, end))),
            );
        }
        events
    }

    /// Whether this login is the author of one of leasehold's comments.
    pub(super) fn is_author(&self, login: &str) -> bool {
        self.posts.iter().any(|post| post.author.eq_ignore_ascii_case(login))
    }

    fn gone(&self) -> impl Iterator<Item = &Gone> {
        self.posts.iter().flat_map(|post| match &post.says {
            Some(Says::Raised(claim) | Says::Held(claim) | Says::Released(claim)) => claim.took.as_slice(),
            Some(Says::Ended(ending)) => ending.took.as_slice(),
            _ => &[],
        })
    }

    fn askings(&self) -> impl Iterator<Item = (&Post, &Asking)> {
        self.posts.iter().filter_map(|post| match &post.says {
            Some(Says::Asked(asking)) => Some((post, asking)),
            _ => None,
        })
    }

    /// Returns the comments that only record the past, oldest first, without the newest `keep` of
    /// them. Never returns the newest record of a task.
    pub(super) fn too_many(&self, keep: usize) -> Vec<u64> {
        let past = |post: &&Post| match &post.says {
            Some(Says::Released(claim)) => claim.until.is_none_or(|until| until.plus(GRACE) <= self.now),
            Some(Says::Asked(_) | Says::Ended(_)) => post.updated_at.plus(RAISED) <= self.now,
            _ => false,
        };
        let newest = self.task().map(|known| known.id);
        let past = self.posts.iter().filter(past).map(|post| post.id).filter(|id| Some(*id) != newest);
        let past: Vec<_> = past.collect();
        past[..past.len().saturating_sub(keep)].to_vec()
    }
}

/// Number of a lease's end within the numbers of that lease; its release requests have lower
/// numbers.
const LAST: u64 = PLACES - 1;
/// Number of history positions per lease.
pub(super) const PLACES: u64 = 16;

impl Post {
    /// Parses a comment; `None` if it is not leasehold's. Tokens follow GitHub's clock. A token
    /// that is far ahead of that clock was not created by the protocol, and would use up all tokens
    /// that come after it: a comment with such a token counts as one that cannot be parsed.
    fn read(comment: Comment, highest: Timestamp) -> Option<Self> {
        let says = match Says::read(comment.body.as_deref().unwrap_or_default()) {
            Found::Nothing => return None,
            Found::Garbage => None,
            Found::Ours(says) if says.highest().get() > highest.as_micros() => None,
            Found::Ours(says) => Some(*says),
        };
        let author = comment.user.map(|user| user.login).unwrap_or_default();
        Some(Self {
            id: comment.id,
            author,
            created_at: comment.created_at,
            updated_at: comment.updated_at,
            says,
        })
    }
}

/// Start, renewals and end of one lease, for the history.
struct Life {
    id: LeaseId,
    holder: Holder,
    since: Timestamp,
    beat: u64,
    end: Option<End>,
}

/// Event of a lease.
#[derive(Clone)]
struct End {
    kind: EventKind,
    at: Timestamp,
    until: Option<Timestamp>,
    by: Option<Holder>,
    reason: Option<crate::model::Reason>,
}

impl Life {
    fn new(id: LeaseId, holder: &Holder, since: Timestamp, beat: u64, end: Option<End>) -> Self {
        Self { id, holder: holder.clone(), since, beat, end }
    }

    fn event(&self, name: &LockName, token: Token, what: End) -> Event {
        let after = u64::try_from(what.at.since(self.since).as_micros()).unwrap_or(u64::MAX);
        Event {
            at: what.at,
            lock: name.clone(),
            kind: what.kind,
            token,
            lease_id: self.id,
            holder: self.holder.clone(),
            mode: Mode::Exclusive,
            slots: Slots::default(),
            after_micros: after,
            renewals: if what.kind == EventKind::Acquired { 0 } else { self.beat },
            until: what.until,
            by: what.by,
            reason: what.reason,
        }
    }
}

/// Returns a conflict with these holders.
pub(super) fn conflict(holders: Vec<HeldBy>, now: Timestamp) -> Conflict {
    Conflict { holders, waiters: 0, full: false, now: Some(now) }
}
