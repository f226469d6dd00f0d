//! Documents on refs: the tip's commit contains the document. To write, a client creates a commit
//! on the tip that was read, and then moves the ref to that commit if its tip is still the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use super::super::api::Api;
use super::super::health::requests;
use super::super::issues::pause;
use super::super::options::Judge;
use super::calls::Moved;
use super::memory::{Memory, Seen};
use super::message::Note;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Timestamp, Ttl, format_duration};
use crate::store::doc_store::is_listed;
use crate::store::lock_store::page_size;
use crate::store::{
    BootInstant, Capabilities, Cursor, DocStore, Document, HealthCheck, Hosts, NewDocument, Page, PutIf,
    RESERVED_PREFIX, Time,
};

/// Documents of one repository.
#[derive(Clone)]
pub(super) struct RefDocs(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) api: Api,
    memory: Memory,
    tree: OnceCell<String>,
}

/// Prefix of the refs of documents that users have named.
const FRONT: &str = "refs/leasehold/";
/// Prefix of the refs of other documents. Must not start like the first prefix, because the two are
/// listed separately.
const BACK: &str = "refs/archived-leasehold/";
/// Polling interval of waiters.
const POLL: Duration = Duration::from_secs(15);
/// Maximum duration of a call. A change is two writes with a second between them, and is repeated
/// if another client was faster.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of repeated reads of a tip that is known to be stale.
const LOOKS: u32 = 3;
/// Uncertainty of a date in whole seconds.
const RESOLUTION: Duration = Duration::from_secs(1);

/// Result of reading a ref.
struct Look {
    found: Option<Seen>,
    /// Whether a newer tip is known to exist.
    is_old: bool,
}

impl RefDocs {
    pub(super) fn new(api: Api) -> Self {
        Self(Arc::new(Inner { api, memory: Memory::default(), tree: OnceCell::new() }))
    }

    /// Returns the tree of leasehold's commits, which is read once.
    pub(super) async fn tree(&self) -> Result<&str> {
        self.0.tree.get_or_try_init(|| self.0.api.newest_tree()).await.map(String::as_str)
    }

    fn now(&self) -> Timestamp {
        let api = &self.0.api;
        api.options
            .clock
            .as_ref()
            .map_or_else(|| api.dates.about(BootInstant::now()), crate::store::Clock::now)
    }

    /// Reads a ref, and reads it again if the result is older than an earlier read, or if its
    /// version is not higher than `beyond`. Returns a stale result after [`LOOKS`] repetitions:
    /// only a write is certain.
    async fn look(&self, key: &str, beyond: Option<u64>) -> Result<Look> {
        let (name, mut again) = (name_of(key), 0);
        loop {
            let found = match self.0.api.tip(&name).await? {
                Some(sha) => Some(self.read(&name, key, sha).await?),
                None => None,
            };
            let version = found.as_ref().map(|seen| seen.note.version);
            let known = self.0.memory.tip(&name).map(|seen| seen.note.version);
            let is_old = version < known || beyond.is_some_and(|beyond| version.unwrap_or(0) <= beyond);
            if let Some(seen) = &found {
                self.0.memory.see(&name, seen);
            }
            if !is_old || again == LOOKS {
                return Ok(Look { found, is_old });
            }
            pause(&self.0.api, again).await;
            again += 1;
        }
    }

    /// Returns the commit that a ref points to. Fails if the commit is not that of `key`: the
    /// probability that another key has the same hash is one in 2²⁵⁶, but the ref may have been
    /// moved by hand.
    async fn read(&self, name: &str, key: &str, sha: String) -> Result<Seen> {
        match self.note(&sha).await? {
            Some(note) if note.key == key => Ok(Seen { sha, note }),
            _ => {
                let repository = self.0.api.repository();
                let message =
                    format!("{name} of the GitHub repository {repository} is not what leasehold wrote");
                Err(Error::store(
                    StoreErrorKind::Broken,
                    message,
                    "who has moved it? Move it back, or delete it when nobody holds its lock",
                ))
            }
        }
    }

    /// Returns the document in a commit; `None` if the commit is not leasehold's.
    async fn note(&self, sha: &str) -> Result<Option<Arc<Note>>> {
        if let Some(note) = self.0.memory.note(sha) {
            return Ok(Some(note));
        }
        let Some(note) = Note::read(&self.0.api.commit(sha).await?.message) else { return Ok(None) };
        let note = Arc::new(note);
        self.0.memory.learn(sha, &note);
        Ok(Some(note))
    }

    fn live(&self, found: Option<&Seen>) -> Option<Document> {
        let note = found.map(|seen| &seen.note).filter(|note| note.is_live(self.now()));
        note.map(|note| Document { version: note.version, body: note.body.clone() })
    }

    fn is_behind(&self, key: &str) -> Error {
        let message = format!(
            "the GitHub repository {} shows {} as it was, although it has changed",
            self.0.api.repository(),
            name_of(key)
        );
        Error::store(StoreErrorKind::Unavailable, message, "try again")
    }
}

#[async_trait]
impl DocStore for RefDocs {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            engine: "github",
            hosts: Hosts::Many,
            min_ttl: Ttl::from_secs(30),
            poll: POLL,
            wakes: false,
            detects_dead_processes: false,
            lasting: true,
            shares: true,
            queues: true,
            forgets_locks: false,
            grace: Duration::ZERO,
            ttl: self.0.api.options.ttl,
            tasks: Capabilities::ALL_OF_TASKS,
        }
    }

    fn url(&self) -> String {
        self.0.api.options.url().to_owned()
    }

    fn reads_may_be_old(&self) -> bool {
        true
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    async fn get(&self, key: &str) -> Result<Option<Document>> {
        let look = self.look(key, None).await?;
        Ok(self.live(look.found.as_ref()))
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, draft: NewDocument) -> Result<PutIf> {
        let (name, api) = (name_of(key), &self.0.api);
        let known = self.0.memory.tip(&name).filter(|seen| Some(seen.note.version) == expected);
        let tip = match known {
            Some(seen) => Some(seen),
            None => {
                let found = self.look(key, None).await?.found;
                let live = self.live(found.as_ref());
                if live.as_ref().map(|doc| doc.version) != expected {
                    return Ok(PutIf::Conflict(live));
                }
                // A document that has expired is overwritten.
                found
            }
        };
        let (now, before) = (self.now(), tip.as_ref().map(|seen| seen.note.version));
        let note = Note {
            key: key.to_owned(),
            // Not only the next version: a ref that was deleted and created again must not reach a
            // version that a client remembers from before.
            version: before.map_or(0, |version| version + 1).max(now.as_micros()),
            until: draft.keep.map(|keep| now.plus(keep)),
            write: fastrand::u64(..),
            body: draft.body.clone(),
        };
        let parent = tip.as_ref().map(|seen| seen.sha.as_str());
        let sha = api.create_commit(&note.write(&draft), self.tree().await?, parent).await?;
        let moved = match parent {
            None => api.create_ref(&name, &sha).await?,
            Some(_) => api.move_ref(&name, &sha).await?,
        };
        match moved {
            Moved::Yes => {
                let version = note.version;
                self.0.memory.moved(&name, Seen { sha, note: Arc::new(note) });
                Ok(PutIf::Written(version))
            }
            Moved::Gone => {
                self.0.memory.forget(&name);
                Ok(PutIf::Conflict(None))
            }
            Moved::Elsewhere => {
                // A newer document than the expected one exists, whatever a read returns.
                let look = self.look(key, Some(before.unwrap_or(0))).await?;
                if look.is_old {
                    return Err(self.is_behind(key));
                }
                Ok(PutIf::Conflict(self.live(look.found.as_ref())))
            }
        }
    }

    /// Returns documents in the order of their keys. Refs have no order: this reads all of them,
    /// and keeps the first keys. A commit that was read before costs nothing.
    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        let limit = page_size(limit) as usize;
        let mut first = BTreeMap::new();
        for found in self.0.api.tips(room(prefix)).await? {
            let Some(note) = self.note(&found.tip.sha).await?.filter(|note| name_of(&note.key) == found.name)
            else {
                tracing::warn!(name = found.name, "this ref is not what leasehold has written");
                continue;
            };
            let seen = Seen { sha: found.tip.sha, note };
            self.0.memory.see(&found.name, &seen);
            // An earlier read may be newer than the list.
            let seen = self.0.memory.tip(&found.name).unwrap_or(seen);
            let key = &seen.note.key;
            if is_listed(key, prefix)
                && after.as_ref().is_none_or(|after| *key > after.0)
                && let Some(doc) = self.live(Some(&seen))
            {
                first.insert(key.clone(), doc);
                if first.len() > limit {
                    first.pop_last();
                }
            }
        }
        let next =
            first.last_key_value().filter(|_| first.len() == limit).map(|(key, _)| Cursor(key.clone()));
        Ok(Page { items: first.into_iter().collect(), next })
    }

    async fn time(&self) -> Result<Time> {
        let options = &self.0.api.options;
        if let Some(clock) = &options.clock {
            return Ok(Time::Exact(clock.now()));
        }
        let (at, dates) = (BootInstant::now(), &self.0.api.dates);
        let past = match options.judge {
            Judge::Watch => None,
            Judge::Date { skew } => dates.told(at).map(|told| told.minus(skew + RESOLUTION)),
        };
        Ok(Time::Watched { about: dates.about(at), past })
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        let api = &self.0.api;
        let (repository, refs) = (api.look_at_repository().await?, api.tips(FRONT).await?.len());
        let can_push = repository.permissions.is_none_or(|permissions| permissions.push);
        let shown = format!("{}: {refs} refs in {FRONT}", api.repository());
        let clock = match api.options.judge {
            Judge::Watch => "a lease is over when somebody has watched it for its whole time".to_owned(),
            Judge::Date { skew } => {
                format!("a lease is over when the answers' Date is {} past its end", format_duration(skew))
            }
        };
        Ok(vec![
            if can_push {
                HealthCheck::ok("repository", shown)
            } else {
                let hint =
                    "arbiter=ref needs it: give the token's login push access, and the token contents: write";
                HealthCheck::concern(
                    "repository",
                    format!("{shown}, and no push access"),
                    "GITHUB_NO_PUSH",
                    hint,
                )
            },
            requests(api).await?,
            HealthCheck::ok("lease clock", clock),
        ])
    }
}

fn room(key: &str) -> &'static str {
    if key.starts_with(RESERVED_PREFIX) { BACK } else { FRONT }
}

/// Returns the name of the ref for a key, which may be any text.
fn name_of(key: &str) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA256, key.as_bytes());
    hash.as_ref().iter().fold(room(key).to_owned(), |mut name, byte| {
        name.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
        name.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
        name
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards the stored format: a key must always have the same ref.
    #[test]
    fn a_ref_is_named_by_the_hash_of_its_key() {
        let hash = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
        assert_eq!(name_of("foo"), format!("{FRONT}{hash}"));
        assert!(name_of("\u{1}events/1/foo").starts_with(BACK));
        assert!(!BACK.starts_with(FRONT.trim_end_matches('/')));
    }
}
