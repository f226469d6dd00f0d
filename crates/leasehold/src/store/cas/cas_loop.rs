//! Compare-and-swap loop: apply the rules to the current document, save it if its version is
//! unchanged, else continue from the newer document.

use std::time::Duration;

use super::history::Archive;
use super::lock_doc::{InDoubtWrite, LocalLock, LockDoc};
use super::observed_expiry::LeaseObservations;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{LockName, LockOp, Outcome, Timestamp};
use crate::store::wake::Waiters;
use crate::store::{BootInstant, Document, DocumentStore, PutIf, Time};

/// Maximum number of attempts before the caller gets an error because of too many conflicts.
const MAX_ATTEMPTS: u32 = 64;

/// Number of immediate retries before the loop backs off.
const IMMEDIATE_RETRIES: u32 = 4;

pub(super) struct CasLoop<D> {
    pub(super) docs: D,
    pub(super) observations: LeaseObservations,
    pub(super) waiters: Waiters,
}

/// Document, and whether it was just read.
struct Snapshot {
    version: Option<u64>,
    doc: LockDoc,
    fresh: bool,
}

impl<D: DocumentStore> CasLoop<D> {
    /// Applies one operation. `local` belongs to this lock, and to this call alone.
    pub(super) async fn apply(&self, local: &mut LocalLock, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let mut snapshot = match local.cached.take() {
            _ if local.in_doubt.is_some() => self.read(name).await?,
            Some((version, doc)) => Snapshot { version: Some(version), doc, fresh: false },
            // Many locks are acquired for the first time; if the document exists after all, the
            // conflict returns what a read would have returned.
            None if !local.exists && matches!(op, LockOp::Acquire(_)) => {
                Snapshot { version: None, doc: LockDoc::new(name), fresh: false }
            }
            None => self.read(name).await?,
        };
        // Whether an earlier attempt may have been made although its write is not among the recent ones.
        let mut may_be_done = false;
        for attempt in 0..MAX_ATTEMPTS {
            let since = BootInstant::now();
            let mut doc = snapshot.doc.clone();
            let now = self.now_for(&doc, Some(op)).await?;
            let applied = doc.apply(op, now);
            if may_be_done && snapshot.doc.may_be_after(op, &applied.outcome) {
                return Err(in_doubt(name));
            }
            if !applied.changed {
                if !snapshot.fresh {
                    snapshot = self.read(name).await?;
                    continue;
                }
                // The result "unchanged" must stay true: if an in-doubt write of this process could
                // still find the version that it expects, this version must be replaced. And it must
                // be true now: where reads may be old, only a successful write proves it.
                let can_take_effect =
                    local.in_doubt.is_some_and(|in_doubt| in_doubt.expected == snapshot.version);
                let may_be_outdated = self.docs.reads_may_be_old()
                    && (local.in_doubt.is_some() || reports_missing_lease(&applied.outcome));
                if !can_take_effect && !may_be_outdated {
                    local.in_doubt = None;
                    let outcome = self.with_known_expiry(&snapshot.doc, applied.outcome).await?;
                    if let Some(version) = snapshot.version {
                        local.cache(version, snapshot.doc);
                    }
                    return Ok(outcome);
                }
            }
            let archive = Archive(&self.docs);
            archive.spill(&mut doc).await?;
            // Only a process that caches the document knows that the events were copied and can omit
            // them from its next write.
            let cached = LocalLock::is_cacheable(&doc).then(|| doc.clone());
            doc.add_events(&applied.events, &snapshot.doc)?;
            let number = fastrand::u64(1..);
            doc.record_write(number);
            let draft = doc.to_new_document()?;
            // An earlier in-doubt write expects the version that this one replaces, or an older one.
            local.in_doubt = Some(InDoubtWrite { expected: snapshot.version, since });
            let (result, copied) = tokio::join!(
                self.docs.put_if(name.as_str(), snapshot.version, draft),
                archive.copy_ahead(cached.as_ref())
            );
            let result = result?;
            local.in_doubt = None;
            match result {
                PutIf::Written(version) => {
                    self.observations.observe(&doc, BootInstant::now());
                    if copied {
                        archive.drop_oldest(&mut doc);
                    }
                    local.cache(version, doc);
                }
                PutIf::Conflict(newer) => {
                    let before = std::mem::replace(&mut snapshot, self.snapshot(name, newer.as_ref())?);
                    let once = is_reported_once(&applied.outcome);
                    if !(once && snapshot.doc.includes_write(number)) {
                        may_be_done |= once && snapshot.doc.may_omit_writes_since(&before.doc);
                        // The other writer has made progress. Continuing at once from the newer
                        // document has the best chance; after several conflicts the loop backs off,
                        // and then reads again.
                        if attempt >= IMMEDIATE_RETRIES {
                            back_off(attempt - IMMEDIATE_RETRIES).await;
                            snapshot = self.read(name).await?;
                        }
                        continue;
                    }
                    // The write was made by this call: its response was lost, it was resent, and
                    // another caller wrote in between.
                }
            }
            if !applied.handed_over.is_empty() {
                self.waiters.wake_local(name, applied.handed_over, since);
            }
            return Ok(applied.outcome);
        }
        let message =
            format!("too many concurrent changes of lock '{name}': {MAX_ATTEMPTS} attempts conflicted");
        let hint = "try again; wait in the queue instead of retrying in a loop";
        Err(Error::store(StoreErrorKind::Unavailable, message, hint))
    }

    /// Returns the current document; `None` if the lock was never used.
    pub(super) async fn get(&self, name: &LockName) -> Result<Option<LockDoc>> {
        let snapshot = self.read(name).await?;
        Ok(Some(snapshot.doc).filter(|doc| doc.record.version > 0))
    }

    /// Returns the time at which an operation is applied to this lock. A lease that may not have
    /// expired does not expire at this time.
    pub(super) async fn now_for(&self, doc: &LockDoc, op: Option<&LockOp>) -> Result<Timestamp> {
        Ok(match self.docs.time().await? {
            Time::Exact(now) => now,
            Time::Observed { estimate: about, lower_bound: past } => {
                self.observations.now_for(doc, op, about, past, BootInstant::now())
            }
        })
    }

    /// Corrects the end times in a conflict. If the end of a lease has passed, but this process
    /// cannot know yet that the lease has expired, the end is set to the time at which it will know.
    async fn with_known_expiry(&self, doc: &LockDoc, mut outcome: Outcome) -> Result<Outcome> {
        let Outcome::Conflict(conflict) = &mut outcome else { return Ok(outcome) };
        let Time::Observed { estimate: about, lower_bound: past } = self.docs.time().await? else {
            return Ok(outcome);
        };
        for held in conflict.holders.iter_mut().filter(|held| held.until <= about) {
            if let Some(lease) = doc.record.holders.iter().find(|lease| lease.token == held.token) {
                held.until = self.observations.known_expiry(doc, lease, about, past, BootInstant::now());
            }
        }
        Ok(outcome)
    }

    async fn read(&self, name: &LockName) -> Result<Snapshot> {
        let doc = self.docs.get(name.as_str()).await?;
        self.snapshot(name, doc.as_ref())
    }

    fn snapshot(&self, name: &LockName, found: Option<&Document>) -> Result<Snapshot> {
        let doc = LockDoc::read(name, found)?;
        self.observations.observe(&doc, BootInstant::now());
        Ok(Snapshot { version: found.map(|doc| doc.version), doc, fresh: true })
    }
}

/// Returns the error for a write that may have been made: its response may have been lost, and others have
/// changed the lock so often since that the document does not name the write any more.
fn in_doubt(name: &LockName) -> Error {
    let message = format!("it is unknown whether lock '{name}' was changed: others have changed it since");
    Error::store(StoreErrorKind::Unavailable, message, "check the status of the lock, then try again")
}

/// Whether a repetition of the operation would return a different outcome.
fn is_reported_once(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Released(_) | Outcome::Forced(_) | Outcome::ReleaseRequested(_))
}

/// Whether the outcome reports that a lease or ticket does not exist: a caller that receives it no
/// longer relies on the lease.
fn reports_missing_lease(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::NotHeld(_) | Outcome::Withdrawn)
}

async fn back_off(again: u32) {
    tokio::time::sleep(Duration::from_micros(fastrand::u64(0..=1000 << again.min(6)))).await;
}
