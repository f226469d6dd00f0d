//! Compare-and-swap loop: apply the rules to the current document, save it if its version is
//! unchanged, else continue from the newer document.

use std::time::Duration;

use super::history::Archive;
use super::lanes::{Adrift, Lane};
use super::lock_doc::LockDoc;
use super::sights::LeaseObservations;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{LockName, LockOp, Outcome, Timestamp};
use crate::store::wake::{Reach, Waiters};
use crate::store::{BootInstant, DocStore, Document, PutIf, Time};

/// Maximum number of attempts before the caller gets an error because of too many conflicts.
const MAX_TRIES: u32 = 64;

/// Number of immediate retries before the loop backs off.
const AT_ONCE: u32 = 4;

/// Context of the loop.
pub(super) struct Swap<D> {
    pub(super) docs: D,
    pub(super) sights: LeaseObservations,
    pub(super) waiters: Waiters,
}

/// Document, and whether it was just read.
struct Seen {
    version: Option<u64>,
    doc: LockDoc,
    fresh: bool,
}

impl<D: DocStore> Swap<D> {
    /// Applies one operation. The caller must hold the lane.
    pub(super) async fn apply(&self, lane: &mut Lane, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let mut seen = match lane.known.take() {
            _ if lane.adrift.is_some() => self.read(name).await?,
            Some((version, doc)) => Seen { version: Some(version), doc, fresh: false },
            // Many locks are acquired for the first time; if the document exists after all, the
            // conflict returns what a read would have returned.
            None if !lane.exists && matches!(op, LockOp::Acquire(_)) => {
                Seen { version: None, doc: LockDoc::new(name), fresh: false }
            }
            None => self.read(name).await?,
        };
        for attempt in 0..MAX_TRIES {
            let since = BootInstant::now();
            let mut doc = seen.doc.clone();
            let now = self.now_for(&doc, Some(op)).await?;
            let applied = doc.apply(op, now);
            if !applied.changed {
                if !seen.fresh {
                    seen = self.read(name).await?;
                    continue;
                }
                // The result "unchanged" must stay true: if an in-doubt write of this process could
                // still find the version that it expects, this version must be replaced. And it must
                // be true now: where reads may be old, only a successful write proves it.
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
            // Only a process that caches the document knows that the events were copied and can omit
            // them from its next write.
            let stored = Lane::remembers(&doc).then(|| doc.clone());
            doc.tail.extend(applied.events.iter().cloned());
            let number = fastrand::u64(1..);
            doc.note_write(number);
            let draft = doc.draft()?;
            // An earlier in-doubt write expects the version that this write replaces, or one that was
            // replaced before.
            lane.adrift = Some(Adrift { expected: seen.version, since });
            let (answer, copied) = tokio::join!(
                self.docs.put_if(name.as_str(), seen.version, draft),
                archive.copy_ahead(stored.as_ref())
            );
            let answer = answer?;
            lane.adrift = None;
            match answer {
                PutIf::Written(version) => {
                    self.sights.see(&doc, BootInstant::now());
                    if copied {
                        archive.drop_oldest(&mut doc);
                    }
                    lane.remember(version, doc);
                }
                PutIf::Conflict(newer) => {
                    seen = self.seen(name, newer.as_ref())?;
                    if !(is_told_once(&applied.outcome) && seen.doc.comes_from(number)) {
                        // The other writer has made progress. Continuing at once from the newer
                        // document has the best chance; after several conflicts the loop backs off,
                        // and then reads again.
                        if attempt >= AT_ONCE {
                            step_back(attempt - AT_ONCE).await;
                            seen = self.read(name).await?;
                        }
                        continue;
                    }
                    // The write was made by this call: its response was lost, it was resent, and
                    // another caller wrote in between.
                }
            }
            if !applied.handed_over.is_empty() {
                self.waiters.wake(name, applied.handed_over, since, Reach::Process);
            }
            return Ok(applied.outcome);
        }
        let message = format!("lock '{name}' is changed by too many at once: {MAX_TRIES} tries lost");
        Err(Error::store(
            StoreErrorKind::Unavailable,
            message,
            "try again; wait in the queue rather than asking in a loop",
        ))
    }

    /// Returns the current document; `None` if the lock was never used.
    pub(super) async fn look(&self, name: &LockName) -> Result<Option<LockDoc>> {
        let seen = self.read(name).await?;
        Ok(Some(seen.doc).filter(|doc| doc.record.version > 0))
    }

    /// Returns the time at which an operation is applied to this lock. A lease that may not have
    /// expired does not expire at this time.
    pub(super) async fn now_for(&self, doc: &LockDoc, op: Option<&LockOp>) -> Result<Timestamp> {
        Ok(match self.docs.time().await? {
            Time::Exact(now) => now,
            Time::Watched { about, past } => self.sights.now_for(doc, op, about, past, BootInstant::now()),
        })
    }

    /// Corrects the end times in a conflict. If the end of a lease has passed, but this process
    /// cannot know yet that the lease has expired, the end is set to the time at which it will know.
    async fn with_ends_to_come(&self, doc: &LockDoc, mut outcome: Outcome) -> Result<Outcome> {
        let Outcome::Conflict(conflict) = &mut outcome else { return Ok(outcome) };
        let Time::Watched { about, past } = self.docs.time().await? else { return Ok(outcome) };
        for held in conflict.holders.iter_mut().filter(|held| held.until <= about) {
            if let Some(lease) = doc.record.holders.iter().find(|lease| lease.token == held.token) {
                held.until = self.sights.over_at(doc, lease, about, past, BootInstant::now());
            }
        }
        Ok(outcome)
    }

    async fn read(&self, name: &LockName) -> Result<Seen> {
        let doc = self.docs.get(name.as_str()).await?;
        self.seen(name, doc.as_ref())
    }

    fn seen(&self, name: &LockName, found: Option<&Document>) -> Result<Seen> {
        let doc = LockDoc::read(name, found)?;
        self.sights.see(&doc, BootInstant::now());
        Ok(Seen { version: found.map(|doc| doc.version), doc, fresh: true })
    }
}

/// Whether a repetition of the operation would return a different outcome.
fn is_told_once(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Released(_) | Outcome::Forced(_))
}

/// Whether the outcome reports that a lease or ticket does not exist: a caller that receives it no
/// longer relies on the lease.
fn says_it_is_gone(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::NotHeld(_) | Outcome::Left)
}

async fn step_back(again: u32) {
    tokio::time::sleep(Duration::from_micros(fastrand::u64(0..=1000 << again.min(6)))).await;
}
