//! Reads and writes of a state. Every write is fenced: it carries the token of a lease that was
//! active after the index was read, and succeeds only if the index has not changed since.

use leasehold::Error;
use leasehold::model::{Holder, LockOp, Renew, Timestamp, Token, check_depth};
use leasehold::store::{DocumentStore, PutIf, Store};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::lock::{LockInfo, StateLock, blocking_holder};
use super::state_index::{self, MAX_ATTEMPTS, StateIndex, StoredIndex, Version, busy, docs};
use crate::problem::{Problem, broken};
use crate::request::body::parse;
use crate::server::TerraformOptions;

/// Fields of a state that the server reads; the others are opaque to the server.
#[derive(Deserialize)]
struct StateFields {
    #[serde(default)]
    serial: u64,
    #[serde(default)]
    lineage: String,
    #[serde(default)]
    terraform_version: String,
}

pub(super) struct StateWrite<'a> {
    pub(super) lock: StateLock<'a>,
    /// Lock id that the client sends with a write.
    pub(super) lock_id: Option<&'a str>,
    pub(super) by: Holder,
    pub(super) options: TerraformOptions,
}

pub(super) async fn read(store: &dyn Store, state: &str) -> Result<Option<String>, Problem> {
    let docs = docs(store)?;
    for _ in 0..MAX_ATTEMPTS {
        let found = StoredIndex::load(docs, state).await?;
        let Some(current) = found.index.current() else { return Ok(None) };
        match state_index::read_chunks(docs, state, current).await {
            Ok(text) => return Ok(Some(text)),
            Err(error) => {
                // The version may have been replaced and pruned during the read.
                let again = StoredIndex::load(docs, state).await?;
                if again.version == found.version {
                    return Err(error.into());
                }
            }
        }
    }
    Err(busy().into())
}

/// Index, with proof that the caller was allowed to write when the index was read.
struct Checked {
    found: StoredIndex,
    token: Token,
    now: Timestamp,
}

impl StateWrite<'_> {
    /// Writes the state. Adds versions whose chunks no index names to `unused`, also on an error.
    pub(super) async fn put(&self, text: &str, unused: &mut Vec<Version>) -> Result<(), Problem> {
        let fields: StateFields = parse(text.as_bytes()).map_err(|problem| problem.at("invalid state"))?;
        check_depth(text)?;
        let (docs, state) = (docs(self.lock.store)?, self.lock.state);
        let sha256 = hex(&Sha256::digest(text.as_bytes()));
        // Detects a repeated write by a client that did not receive the response.
        let is_there = |index: &StateIndex| index.current().is_some_and(|current| current.sha256 == sha256);

        let checked = self.check(StoredIndex::load(docs, state).await?).await?;
        if is_there(&checked.found.index) {
            return Ok(());
        }
        let mut version = Version {
            id: Uuid::new_v4().simple().to_string(),
            serial: fields.serial,
            lineage: fields.lineage,
            client: fields.terraform_version,
            bytes: text.len() as u64,
            sha256: sha256.clone(),
            at: checked.now,
            by: self.by.to_string(),
            token: checked.token,
            chunks: Vec::new(),
        };
        if let Err(error) = state_index::write_chunks(docs, state, &mut version, text).await {
            unused.push(version);
            return Err(error.into());
        }
        let add = |mut index: StateIndex| {
            if is_there(&index) {
                return None;
            }
            index.versions.insert(0, version.clone());
            index.present = true;
            Some(index)
        };
        let swapped = self.compare_and_swap(docs, checked, Some(&version), add, unused).await;
        match &swapped {
            // If the store did not respond, the index may name the chunks.
            Ok(true) | Err(WriteError::Uncertain(_)) => {}
            Ok(false) | Err(WriteError::Rejected(_)) => unused.push(version),
        }
        Ok(swapped.map(|_| ())?)
    }

    /// Deletes the state; its versions stay in the history. Adds those that are no longer kept to `unused`.
    pub(super) async fn delete(&self, unused: &mut Vec<Version>) -> Result<(), Problem> {
        let docs = docs(self.lock.store)?;
        let checked = self.check(StoredIndex::load(docs, self.lock.state).await?).await?;
        let remove = |index: StateIndex| index.present.then_some(StateIndex { present: false, ..index });
        self.compare_and_swap(docs, checked, None, remove, unused).await?;
        Ok(())
    }

    /// Changes the index if it is unchanged since the caller's authority was checked. `added` is the version
    /// that the change adds. Adds versions that are no longer kept to `unused`. Returns whether there was
    /// anything to change.
    async fn compare_and_swap(
        &self,
        docs: &dyn DocumentStore,
        mut checked: Checked,
        added: Option<&Version>,
        change: impl Fn(StateIndex) -> Option<StateIndex>,
        unused: &mut Vec<Version>,
    ) -> Result<bool, WriteError> {
        let state = self.lock.state;
        for _ in 0..MAX_ATTEMPTS {
            let Some(mut index) = change(checked.found.index) else { return Ok(false) };
            index.token = checked.token;
            let old = checked.now.minus(self.options.versions_for.as_duration());
            let pruned = index.prune(self.options.versions, old);
            match docs.put_if(&state_index::key(state), checked.found.version, index.document()).await? {
                PutIf::Written(_) => {
                    unused.extend(pruned);
                    return Ok(true);
                }
                PutIf::Conflict(doc) => {
                    let found = StoredIndex::read(doc)?;
                    // If the driver repeats a write because its response was lost, the first write is in
                    // the way of the second one. A version that an index has lost never returns to it.
                    unused.extend(pruned.into_iter().filter(|version| !found.index.has(version)));
                    if added.is_some_and(|added| found.index.has(added)) {
                        return Ok(true);
                    }
                    checked = self.check(found).await.map_err(WriteError::into_rejected)?;
                }
            }
        }
        Err(WriteError::rejected(busy().into()))
    }

    /// Checks that the caller may write to `found`. The check must come after the read: a lease
    /// that is active now was active when the index was read, and a later holder changes the index
    /// before it learns that it holds the lock.
    async fn check(&self, found: StoredIndex) -> Result<Checked, WriteError> {
        let (token, now) = self.authority(found.index.token).await?;
        if found.index.token > token {
            let detail = format!("another client has locked the state '{}' since", self.lock.state);
            return Err(WriteError::rejected(Problem::new("STALE_TOKEN", detail)));
        }
        Ok(Checked { found, token, now })
    }

    /// Returns the token that the caller may write with, and renews the caller's lease. `last` is the token
    /// of the index.
    async fn authority(&self, last: Token) -> Result<(Token, Timestamp), WriteError> {
        let (record, now) = self.lock.load().await?;
        let Some(id) = self.lock_id else {
            // A client without a lock may write only while the lock is free.
            return match record.as_ref().and_then(|record| blocking_holder(record, now)) {
                Some(LockInfo { who, id, .. }) => {
                    let state = self.lock.state;
                    let detail =
                        format!("the state '{state}' is locked by {who}, ID {id}; this write has no ID");
                    Err(WriteError::rejected(Problem::new("LOCK_CONFLICT", detail)))
                }
                // The store forgets an idle lock: then the index alone has the token of its last holder.
                None => Ok((record.map_or(last, |record| record.token), now)),
            };
        };
        let lease_id = LockInfo::lease_id(id).map_err(WriteError::rejected)?;
        let Some(lease) = record.as_ref().and_then(|record| record.lease(&lease_id)) else {
            return Err(WriteError::rejected(self.lost(id)));
        };
        self.lock.identity.must_own(&lease.request).map_err(WriteError::rejected)?;
        let token = lease.token;
        let renew = LockOp::Renew(Renew { lease_id, token, ttl: None });
        let lock = &self.lock.name;
        let answer = self.lock.store.locks().apply(lock, &renew).await?.into_renewed();
        let invalid =
            |error| broken(format!("the store gave an invalid answer about lock '{lock}': {error}"));
        match answer.map_err(invalid)? {
            Ok(_) => Ok((token, now)),
            Err(_) => Err(WriteError::rejected(self.lost(id))),
        }
    }

    fn lost(&self, id: &str) -> Problem {
        let detail =
            format!("the lock ID {id} does not hold the state '{}'; nothing was written", self.lock.state);
        Problem::new("LEASE_LOST", detail)
            .hint(format!("see what happened with: leasehold history {}", self.lock.name))
    }
}

enum WriteError {
    /// The write was certainly not made; in most cases because the caller has no authority.
    Rejected(Box<Problem>),
    /// The store did not respond; the write may have been made.
    Uncertain(Error),
}

impl WriteError {
    fn rejected(problem: Problem) -> Self {
        Self::Rejected(Box::new(problem))
    }

    /// Converts an error before which the write was certainly not made.
    fn into_rejected(self) -> Self {
        Self::rejected(self.into())
    }
}

impl From<Error> for WriteError {
    fn from(error: Error) -> Self {
        Self::Uncertain(error)
    }
}

impl From<WriteError> for Problem {
    fn from(failed: WriteError) -> Self {
        match failed {
            WriteError::Rejected(problem) => *problem,
            WriteError::Uncertain(error) => error.into(),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
