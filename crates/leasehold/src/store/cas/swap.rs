//! The loop: apply the rules to what is there, save it if nobody was faster, else go on from what is there now.

use std::time::Duration;

use super::history::Archive;
use super::lanes::{Adrift, Lane};
use super::lock_doc::LockDoc;
use super::sights::Sights;
use crate::error::{Error, Result, Trouble};
use crate::model::{LockName, LockOp, Outcome, Timestamp};
use crate::store::wake::{Reach, Waiters};
use crate::store::{Doc, DocStore, Moment, PutIf, Time};

/// So often a clash is tried again before the caller is told that the lock is too busy.
const MAX_TRIES: u32 = 64;

/// So often at once.
const AT_ONCE: u32 = 4;

/// What the loop works with.
pub(super) struct Swap<D> {
    pub(super) docs: D,
    pub(super) sights: Sights,
    pub(super) waiters: Waiters,
}

/// A document, and whether it is what is there now.
struct Seen {
    version: Option<u64>,
    doc: LockDoc,
    fresh: bool,
}

impl<D: DocStore> Swap<D> {
    /// Applies one operation. Whoever calls it is alone in the lane.
    pub(super) async fn apply(&self, lane: &mut Lane, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let mut seen = match lane.known.take() {
            _ if lane.adrift.is_some() => self.read(name).await?,
            Some((version, doc)) => Seen { version: Some(version), doc, fresh: false },
            // Many locks are asked for that nobody has asked for before; if this is not one of them, the clash brings
            // what a look would have brought.
            None if !lane.exists && matches!(op, LockOp::Acquire(_)) => {
                Seen { version: None, doc: LockDoc::new(name), fresh: false }
            }
            None => self.read(name).await?,
        };
        for attempt in 0..MAX_TRIES {
            let since = Moment::now();
            let mut doc = seen.doc.clone();
            let now = self.now_for(&doc, Some(op)).await?;
            let applied = doc.apply(op, now);
            if !applied.changed {
                if !seen.fresh {
                    seen = self.read(name).await?;
                    continue;
                }
                // "Nothing to do" must stay true: if a write of ours is adrift that could still find the version it
                // expects, this version has to go. And it must be true: where reads may be old, only a write that
                // succeeds proves it.
                let can_land = lane.adrift.is_some_and(|adrift| adrift.expected == seen.version);
                let is_doubtful = self.docs.reads_may_be_old()
                    && (lane.adrift.is_some() || says_it_is_gone(&applied.outcome));
                if !can_land && !is_doubtful {
                    lane.adrift = None;
                    let outcome = self.with_ends_to_come(&seen.doc, applied.outcome).await?;
                    if let Some(version) = seen.version {
                        lane.remember(version, seen.doc);
                    }
                    return Ok(outcome);
                }
            }
            let archive = Archive(&self.docs);
            archive.spill(&mut doc).await?;
            // Only whoever remembers that they were copied can leave them out next time.
            let stored = Lane::remembers(&doc).then(|| doc.clone());
            doc.tail.extend(applied.events.iter().cloned());
            let number = fastrand::u64(1..);
            doc.note_write(number);
            let draft = doc.draft()?;
            // What was adrift before expects the version that goes now, or one that is gone.
            lane.adrift = Some(Adrift { expected: seen.version, since });
            let (answer, copied) = tokio::join!(
                self.docs.put_if(name.as_str(), seen.version, draft),
                archive.copy_ahead(stored.as_ref())
            );
            let answer = answer?;
            lane.adrift = None;
            match answer {
                PutIf::Written(version) => {
                    self.sights.see(&doc, Moment::now());
                    if copied {
                        archive.drop_oldest(&mut doc);
                    }
                    lane.remember(version, doc);
                }
                PutIf::Clash(newer) => {
                    seen = self.seen(name, newer.as_ref())?;
                    if !(is_told_once(&applied.outcome) && seen.doc.comes_from(number)) {
                        // Whoever was faster has made progress. Going on at once from what it has written is the
                        // best chance; whoever loses again and again steps back, and then looks anew.
                        if attempt >= AT_ONCE {
                            step_back(attempt - AT_ONCE).await;
                            seen = self.read(name).await?;
                        }
                        continue;
                    }
                    // The write was ours: its answer was lost, it was sent again, and somebody came in between.
                }
            }
            if !applied.handed_over.is_empty() {
                self.waiters.wake(name, applied.handed_over, since, Reach::Process);
            }
            return Ok(applied.outcome);
        }
        let message = format!("lock '{name}' is changed by too many at once: {MAX_TRIES} tries lost");
        Err(Error::store(
            Trouble::Unavailable,
            message,
            "try again; wait in the queue rather than asking in a loop",
        ))
    }

    /// The document as it is now; nothing if nobody has asked for this lock yet.
    pub(super) async fn look(&self, name: &LockName) -> Result<Option<LockDoc>> {
        let seen = self.read(name).await?;
        Ok(Some(seen.doc).filter(|doc| doc.record.version > 0))
    }

    /// The time at which an operation is applied to this lock. No lease ends in it that may not have ended.
    pub(super) async fn now_for(&self, doc: &LockDoc, op: Option<&LockOp>) -> Result<Timestamp> {
        Ok(match self.docs.time().await? {
            Time::Exact(now) => now,
            Time::Watched { about, past } => self.sights.now_for(doc, op, about, past, Moment::now()),
        })
    }

    /// A refusal names the time until which it holds. Of a lease whose time is over, but which this process cannot know to
    /// be over yet, that is when it will.
    async fn with_ends_to_come(&self, doc: &LockDoc, mut outcome: Outcome) -> Result<Outcome> {
        let Outcome::Busy(conflict) = &mut outcome else { return Ok(outcome) };
        let Time::Watched { about, past } = self.docs.time().await? else { return Ok(outcome) };
        for held in conflict.holders.iter_mut().filter(|held| held.until <= about) {
            if let Some(lease) = doc.record.holders.iter().find(|lease| lease.token == held.token) {
                held.until = self.sights.over_at(doc, lease, about, past, Moment::now());
            }
        }
        Ok(outcome)
    }

    async fn read(&self, name: &LockName) -> Result<Seen> {
        let doc = self.docs.get(name.as_str()).await?;
        self.seen(name, doc.as_ref())
    }

    fn seen(&self, name: &LockName, found: Option<&Doc>) -> Result<Seen> {
        let doc = LockDoc::read(name, found)?;
        self.sights.see(&doc, Moment::now());
        Ok(Seen { version: found.map(|doc| doc.version), doc, fresh: true })
    }
}

/// Whether doing it again would be answered otherwise.
fn is_told_once(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Released(_) | Outcome::Forced(_))
}

/// Whether it says that a lease or ticket is not there: whoever believes that stops counting on it.
fn says_it_is_gone(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::NotHeld(_) | Outcome::Left)
}

async fn step_back(again: u32) {
    tokio::time::sleep(Duration::from_micros(fastrand::u64(0..=1000 << again.min(6)))).await;
}
