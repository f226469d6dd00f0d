//! Reads and writes of a state. Every write is fenced: it carries the token of a lease that was
//! active after the head was read, and succeeds only if the head has not changed since.

use leasehold::model::{Holder, LeaseId, LockOp, Outcome, Renew, Timestamp, Token, check_depth};
use leasehold::store::{DocStore, PutIf, Store};
use leasehold::{Error, Result, StoreErrorKind};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::head::{self, Found, Head, Version};
use super::info::LockInfo;
use super::lock::{StateLock, in_the_way};
use super::options::TerraformOptions;
use super::pieces;
use crate::body::parse;
use crate::problem::Problem;

/// Maximum number of attempts of an operation that conflicts with concurrent writes.
const TRIES: u32 = 10;

/// Fields of a state that the server reads; the others are opaque to the server.
#[derive(Deserialize)]
struct Labels {
    #[serde(default)]
    serial: u64,
    #[serde(default)]
    lineage: String,
    #[serde(default)]
    terraform_version: String,
}

/// Change to a state.
pub(super) struct Writing<'a> {
    pub(super) lock: StateLock<'a>,
    /// Lock id that the client sends with a write.
    pub(super) lock_id: Option<&'a str>,
    pub(super) by: Holder,
    pub(super) options: TerraformOptions,
}

/// Returns the document store, or the problem `NOT_SUPPORTED`.
pub(super) fn docs(store: &dyn Store) -> Result<&dyn DocStore, Problem> {
    let none = || Problem::new("NOT_SUPPORTED", format!("{} keeps no documents", store.url()));
    store.docs().ok_or_else(none)
}

/// Returns the text of the current state.
pub(super) async fn read(store: &dyn Store, state: &str) -> Result<Option<String>, Problem> {
    let docs = docs(store)?;
    for _ in 0..TRIES {
        let found = Found::look(docs, state).await?;
        let Some(current) = found.head.current() else { return Ok(None) };
        match pieces::read(docs, state, current).await {
            Ok(text) => return Ok(Some(text)),
            Err(error) => {
                // The version may have been replaced and pruned during the read.
                let again = Found::look(docs, state).await?;
                if again.version == found.version {
                    return Err(error.into());
                }
            }
        }
    }
    Err(busy().into())
}

/// Raises the minimum token of the state, so that writes with a lower token are rejected from now on.
pub(super) async fn raise_token(store: &dyn Store, state: &str, token: Token) -> Result<()> {
    let Some(docs) = store.docs() else { return Ok(()) };
    let mut found = Found::look(docs, state).await?;
    for _ in 0..TRIES {
        if found.head.token >= token {
            return Ok(());
        }
        let head = Head { token, ..found.head };
        match docs.put_if(&head::key(state), found.version, head.draft()).await? {
            PutIf::Written(_) => return Ok(()),
            PutIf::Conflict(doc) => found = Found::read(doc)?,
        }
    }
    Err(busy())
}

/// Head, with proof that the caller was allowed to write when the head was read.
struct Checked {
    found: Found,
    token: Token,
    now: Timestamp,
}

impl Writing<'_> {
    /// Writes a new version.
    pub(super) async fn put(&self, text: &str) -> Result<(), Problem> {
        let labels: Labels = parse(text.as_bytes()).map_err(|problem| problem.at("this is not a state"))?;
        check_depth(text)?;
        let (docs, state) = (docs(self.lock.store)?, self.lock.state);
        let sha256 = hex(&Sha256::digest(text.as_bytes()));
        // Detects a repeated write by a client that did not receive the response.
        let is_there = |head: &Head| head.current().is_some_and(|current| current.sha256 == sha256);

        let checked = self.check(Found::look(docs, state).await?).await?;
        if is_there(&checked.found.head) {
            return Ok(());
        }
        let id = Uuid::new_v4().simple().to_string();
        let pieces = pieces::write(docs, state, &id, text).await?;
        let version = Version {
            id,
            serial: labels.serial,
            lineage: labels.lineage,
            client: labels.terraform_version,
            bytes: text.len() as u64,
            sha256: sha256.clone(),
            at: checked.now,
            by: self.by.to_string(),
            token: checked.token,
            pieces,
        };
        let add = |mut head: Head| {
            if is_there(&head) {
                return None;
            }
            head.versions.insert(0, version.clone());
            head.present = true;
            Some(head)
        };
        let swapped = self.swap(docs, checked, add).await;
        match &swapped {
            // If the store did not respond, a head may name the pieces.
            Ok(true) | Err(Failed::Unsure(_)) => {}
            Ok(false) | Err(Failed::Refused(_)) => pieces::forget(docs, state, &version).await,
        }
        Ok(swapped.map(|_| ())?)
    }

    /// Deletes the state; its versions stay in the history.
    pub(super) async fn delete(&self) -> Result<(), Problem> {
        let docs = docs(self.lock.store)?;
        let checked = self.check(Found::look(docs, self.lock.state).await?).await?;
        let away = |head: Head| head.present.then_some(Head { present: false, ..head });
        self.swap(docs, checked, away).await?;
        Ok(())
    }

    /// Changes the head if it is unchanged since the caller's authority was checked. Returns
    /// whether there was anything to change.
    async fn swap(
        &self,
        docs: &dyn DocStore,
        mut checked: Checked,
        change: impl Fn(Head) -> Option<Head>,
    ) -> Result<bool, Failed> {
        let state = self.lock.state;
        for _ in 0..TRIES {
            let Some(mut head) = change(checked.found.head) else { return Ok(false) };
            head.token = checked.token;
            let old = checked.now.minus(self.options.versions_for.as_duration());
            let pruned = head.prune(self.options.versions, old);
            match docs.put_if(&head::key(state), checked.found.version, head.draft()).await? {
                PutIf::Written(_) => {
                    for version in &pruned {
                        pieces::forget(docs, state, version).await;
                    }
                    return Ok(true);
                }
                PutIf::Conflict(doc) => checked = self.check(Found::read(doc)?).await?,
            }
        }
        Err(busy().into())
    }

    /// Checks that the caller may write to `found`. The check must come after the read: a lease
    /// that is active now was active when the head was read, and a later holder changes the head
    /// before it learns that it holds the lock.
    async fn check(&self, found: Found) -> Result<Checked, Failed> {
        let (token, now) = self.authority().await?;
        if found.head.token > token {
            let detail = format!("the state '{}' has been locked by somebody else since", self.lock.state);
            return Err(Failed::refused(Problem::new("STALE_TOKEN", detail)));
        }
        Ok(Checked { found, token, now })
    }

    /// Returns the token that the caller may write with, and renews the caller's lease.
    async fn authority(&self) -> Result<(Token, Timestamp), Failed> {
        let (record, now) = self.lock.look().await?;
        let Some(id) = self.lock_id else {
            // A client without a lock may write only while the lock is free.
            return match record.as_ref().and_then(|record| in_the_way(record, now)) {
                Some(info) => Err(Failed::refused(held(self.lock.state, &info))),
                None => Ok((record.map_or_else(Token::default, |record| record.token), now)),
            };
        };
        let lease_id = LockInfo::lease_id(id).map_err(Failed::refused)?;
        let lease = record.as_ref().and_then(|record| record.lease(&lease_id));
        let Some(lease) = lease else {
            return Err(Failed::refused(self.lost(id)));
        };
        self.lock.who.must_own(&lease.ask).map_err(Failed::refused)?;
        let token = lease.token;
        self.renew(lease_id, token, id).await.map(|()| (token, now))
    }

    async fn renew(&self, lease_id: LeaseId, token: Token, id: &str) -> Result<(), Failed> {
        let renew = LockOp::Renew(Renew { lease_id, token, ttl: None });
        match self.lock.store.locks().apply(&self.lock.name, &renew).await? {
            Outcome::Renewed(_) => Ok(()),
            _ => Err(Failed::refused(self.lost(id))),
        }
    }

    fn lost(&self, id: &str) -> Problem {
        let detail =
            format!("the lock ID {id} does not hold the state '{}'; nothing was written", self.lock.state);
        Problem::new("LEASE_LOST", detail)
            .hint(format!("see what happened with: leasehold history {}", self.lock.name))
    }
}

/// Reason why a write failed.
enum Failed {
    /// The write was certainly not made: the caller has no authority.
    Refused(Box<Problem>),
    /// The store did not respond; the write may have been made.
    Unsure(Error),
}

impl Failed {
    fn refused(problem: Problem) -> Self {
        Self::Refused(Box::new(problem))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Unsure(error)
    }
}

impl From<Failed> for Problem {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Refused(problem) => *problem,
            Failed::Unsure(error) => error.into(),
        }
    }
}

fn held(state: &str, info: &LockInfo) -> Problem {
    let detail =
        format!("the state '{state}' is locked by {}, ID {}; this write has no ID", info.who, info.id);
    Problem::new("LOCK_CONFLICT", detail)
}

fn busy() -> Error {
    let message = "others keep changing this state".to_owned();
    Error::Store { trouble: StoreErrorKind::Unavailable, message, hint: "try again".to_owned(), source: None }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
