//! Documents on refs: the tip's commit contains the document. To write, a client creates a commit
//! on the tip that was read, and then moves the ref to that commit if its tip is still the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use super::cache::{RefCache, TipCommit};
use super::commit_message::CommitDocument;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Timestamp, Ttl, format_duration};
use crate::store::document_store::is_listed;
use crate::store::github::api::{Api, RefUpdate};
use crate::store::github::health::requests;
use crate::store::lock_store::page_size;
use crate::store::server_clock::Judge;
use crate::store::{
    BootInstant, Capabilities, Cursor, Document, DocumentStore, HealthCheck, Hosts, NewDocument, Page, PutIf,
    RESERVED_PREFIX, Time,
};

#[derive(Clone)]
pub(super) struct RefDocuments(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) api: Api,
    cache: RefCache,
    tree: OnceCell<String>,
}

/// Prefix of the refs of documents that users have named.
const USER_REFS: &str = "refs/leasehold/";
/// Prefix of the refs of other documents, which are listed separately: it must not start the same.
const RESERVED_REFS: &str = "refs/archived-leasehold/";
const POLL: Duration = Duration::from_secs(15);
/// Maximum duration of a call. A change is two writes with a second between them, and is repeated
/// if another client was faster.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of repeated reads of a tip that is known to be stale.
const MAX_STALE_READS: u32 = 3;

/// Result of reading a ref.
struct TipRead {
    found: Option<TipCommit>,
    /// Whether a newer tip is known to exist.
    is_stale: bool,
}

impl RefDocuments {
    pub(super) fn new(api: Api) -> Self {
        Self(Arc::new(Inner { api, cache: RefCache::default(), tree: OnceCell::new() }))
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
            .map_or_else(|| api.dates.estimate(BootInstant::now()), crate::store::Clock::now)
    }

    /// Reads a ref, and reads it again if the result is older than an earlier read, or if its
    /// version is not higher than `beyond`. Returns a stale result after [`MAX_STALE_READS`] repetitions:
    /// only a write is certain.
    async fn read_tip(&self, key: &str, beyond: Option<u64>) -> Result<TipRead> {
        let (name, mut reads) = (ref_name(key), 0);
        loop {
            let found = match self.0.api.tip(&name).await? {
                Some(sha) => Some(self.read_commit(&name, key, sha).await?),
                None => None,
            };
            let version = found.as_ref().map(|tip_commit| tip_commit.document.version);
            let known = self.0.cache.tip(&name).map(|tip_commit| tip_commit.document.version);
            let is_stale = version < known || beyond.is_some_and(|beyond| version.unwrap_or(0) <= beyond);
            if let Some(tip_commit) = &found {
                self.0.cache.observe_tip(&name, tip_commit);
            }
            if !is_stale || reads == MAX_STALE_READS {
                return Ok(TipRead { found, is_stale });
            }
            self.0.api.backoff(reads).await;
            reads += 1;
        }
    }

    /// Returns the commit that a ref points to. Fails if the commit is not that of `key`: the
    /// probability that another key has the same hash is one in 2²⁵⁶, but the ref may have been
    /// moved by hand.
    async fn read_commit(&self, name: &str, key: &str, sha: String) -> Result<TipCommit> {
        match self.document(&sha).await? {
            Some(document) if document.key == key => Ok(TipCommit { sha, document }),
            _ => {
                let repository = self.0.api.repository();
                let message = format!(
                    "{name} of the GitHub repository {repository} does not contain what leasehold wrote"
                );
                let hint = "move the ref back, or delete it when its lock is not held";
                Err(Error::store(StoreErrorKind::Broken, message, hint))
            }
        }
    }

    /// Returns the document in a commit; `None` if the commit is not leasehold's.
    async fn document(&self, sha: &str) -> Result<Option<Arc<CommitDocument>>> {
        if let Some(document) = self.0.cache.document(sha) {
            return Ok(Some(document));
        }
        let Some(document) = CommitDocument::parse(&self.0.api.commit(sha).await?.message) else {
            return Ok(None);
        };
        let document = Arc::new(document);
        self.0.cache.insert_document(sha, &document);
        Ok(Some(document))
    }

    fn live(&self, found: Option<&TipCommit>) -> Option<Document> {
        let document =
            found.map(|tip_commit| &tip_commit.document).filter(|document| document.is_live(self.now()));
        document.map(|document| Document { version: document.version, body: document.body.clone() })
    }

    fn stale_read(&self, key: &str) -> Error {
        let problem = format!("returns a stale {}", ref_name(key));
        self.0.api.error(StoreErrorKind::Unavailable, &problem, "try again")
    }
}

#[async_trait]
impl DocumentStore for RefDocuments {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            min_ttl: Ttl::from_secs(30),
            poll: POLL,
            shared_locks: true,
            queues: true,
            ttl: self.0.api.options.ttl,
            ..Capabilities::new("github", Hosts::Many)
        }
    }

    fn url(&self) -> String {
        self.0.api.options.url.clone()
    }

    fn reads_may_be_old(&self) -> bool {
        true
    }

    fn call_timeout(&self) -> Duration {
        CALL_TIMEOUT
    }

    async fn get(&self, key: &str) -> Result<Option<Document>> {
        let tip_read = self.read_tip(key, None).await?;
        Ok(self.live(tip_read.found.as_ref()))
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, draft: NewDocument) -> Result<PutIf> {
        let (name, api) = (ref_name(key), &self.0.api);
        let known =
            self.0.cache.tip(&name).filter(|tip_commit| Some(tip_commit.document.version) == expected);
        let tip = match known {
            Some(tip_commit) => Some(tip_commit),
            None => {
                let found = self.read_tip(key, None).await?.found;
                let live = self.live(found.as_ref());
                if live.as_ref().map(|doc| doc.version) != expected {
                    return Ok(PutIf::Conflict(live));
                }
                // A document that has expired is overwritten.
                found
            }
        };
        let (now, before) = (self.now(), tip.as_ref().map(|tip_commit| tip_commit.document.version));
        let document = CommitDocument {
            key: key.to_owned(),
            // Not only the next version: a ref that was deleted and created again must not reach a
            // version that a client remembers from before.
            version: before.map_or(0, |version| version + 1).max(now.as_micros()),
            expires_at: draft.keep.map(|keep| now.plus(keep)),
            write: fastrand::u64(..),
            body: draft.body.clone(),
        };
        let parent = tip.as_ref().map(|tip_commit| tip_commit.sha.as_str());
        let sha = api.create_commit(&document.render(&draft), self.tree().await?, parent).await?;
        let update = match parent {
            None => api.create_ref(&name, &sha).await?,
            Some(_) => api.move_ref(&name, &sha).await?,
        };
        match update {
            RefUpdate::Done => {
                let version = document.version;
                self.0.cache.set_tip(&name, TipCommit { sha, document: Arc::new(document) });
                Ok(PutIf::Written(version))
            }
            RefUpdate::NotFound => {
                self.0.cache.forget(&name);
                Ok(PutIf::Conflict(None))
            }
            RefUpdate::Conflict => {
                // A newer document than the expected one exists, whatever a read returns.
                let tip_read = self.read_tip(key, Some(before.unwrap_or(0))).await?;
                if tip_read.is_stale {
                    return Err(self.stale_read(key));
                }
                Ok(PutIf::Conflict(self.live(tip_read.found.as_ref())))
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
        for found in self.0.api.tips(ref_prefix(prefix)).await? {
            let Some(document) =
                self.document(&found.tip.sha).await?.filter(|document| ref_name(&document.key) == found.name)
            else {
                tracing::warn!(
                    name = found.name,
                    "ignoring a ref that does not contain what leasehold wrote"
                );
                continue;
            };
            let tip_commit = TipCommit { sha: found.tip.sha, document };
            self.0.cache.observe_tip(&found.name, &tip_commit);
            // An earlier read may be newer than the list.
            let tip_commit = self.0.cache.tip(&found.name).unwrap_or(tip_commit);
            let key = &tip_commit.document.key;
            if is_listed(key, prefix)
                && after.as_ref().is_none_or(|after| *key > after.0)
                && let Some(doc) = self.live(Some(&tip_commit))
            {
                first.insert(key.clone(), doc);
                if first.len() > limit {
                    first.pop_last();
                }
            }
        }
        Ok(Page::of(first.into_iter().collect(), limit, |(key, _)| Cursor(key.clone())))
    }

    async fn time(&self) -> Result<Time> {
        let options = &self.0.api.options;
        if let Some(clock) = &options.clock {
            return Ok(Time::Exact(clock.now()));
        }
        Ok(self.0.api.dates.time(options.judge))
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        let api = &self.0.api;
        let (repository, refs) = (api.get_repository().await?, api.tips(USER_REFS).await?.len());
        let can_push = repository.permissions.is_none_or(|permissions| permissions.push);
        let detail = format!("{}: {refs} refs in {USER_REFS}", api.repository());
        let clock = match api.options.judge {
            Judge::Watch => {
                "a lease ends when a client has observed it unchanged for its whole ttl".to_owned()
            }
            Judge::Date { skew } => {
                format!(
                    "a lease ends when the Date of the responses is {} past its end",
                    format_duration(skew)
                )
            }
        };
        Ok(vec![
            if can_push {
                HealthCheck::ok("repository", detail)
            } else {
                let hint =
                    "arbiter=ref needs it: give the token's login push access, and the token contents: write";
                HealthCheck::issue(
                    "repository",
                    format!("{detail}, and no push access"),
                    "GITHUB_NO_PUSH",
                    hint,
                )
            },
            requests(api).await?,
            HealthCheck::ok("lease clock", clock),
        ])
    }
}

fn ref_prefix(key: &str) -> &'static str {
    if key.starts_with(RESERVED_PREFIX) { RESERVED_REFS } else { USER_REFS }
}

/// Returns the name of the ref for a key, which may be any text.
fn ref_name(key: &str) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA256, key.as_bytes());
    hash.as_ref().iter().fold(ref_prefix(key).to_owned(), |mut name, byte| {
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
        assert_eq!(ref_name("foo"), format!("{USER_REFS}{hash}"));
        assert!(ref_name("\u{1}events/1/foo").starts_with(RESERVED_REFS));
        assert!(!RESERVED_REFS.starts_with(USER_REFS.trim_end_matches('/')));
    }
}
