//! API tokens in the store: creating, listing, revoking and finding them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::model::{Timestamp, Ttl, ValidationError};
use leasehold::store::{Cursor, Document, DocumentStore, NewDocument, PutIf, RESERVED_PREFIX};
use leasehold::{BootInstant, Error, Leasehold, Result, StoreErrorKind};
use serde::{Deserialize, Serialize};

use super::token::{Hash, TokenText};
use super::{Role, Scope};

/// Cache lifetime of a token record. A revoked token is rejected after this time at the latest.
const CACHE_TTL: Duration = Duration::from_secs(1);
/// Maximum number of cached tokens, so that requests with invented ids cannot fill the memory.
const MAX_CACHED: usize = 10_000;
const PAGE_SIZE: u32 = 500;

/// API tokens of a store.
pub struct TokenStore {
    leasehold: Leasehold,
    cache: Mutex<HashMap<String, (BootInstant, Option<Record>)>>,
}

/// Stored record of a token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) role: Role,
    hash: Hash,
    created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revoked_at: Option<Timestamp>,
    /// Scopes of the token; empty means no restriction. A server that cannot parse one of the
    /// scopes rejects the token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) scopes: Vec<Scope>,
}

/// Newly created token. Its text is shown once and is not stored.
#[non_exhaustive]
pub struct NewToken {
    /// Id of the token.
    pub id: String,
    /// Text of the token, including its secret.
    pub text: String,
}

/// Public view of a token, without its secret.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TokenStatus {
    /// Id of the token.
    pub id: String,
    /// Name of the token's owner.
    pub name: String,
    /// Role of the token.
    pub role: Role,
    /// Creation time.
    pub created_at: String,
    /// Expiry time, if the token expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Revocation time, if the token was revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<String>,
    /// Scopes of the token; empty means no restriction.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<Scope>,
    /// Whether the server currently accepts the token.
    pub active: bool,
}

impl TokenStore {
    /// Returns the API tokens of this store.
    pub fn new(leasehold: Leasehold) -> Self {
        Self { leasehold, cache: Mutex::default() }
    }

    /// Creates a token. `name` is its owner, shown in lists and as the holder of leases acquired
    /// with the token.
    pub async fn create(&self, name: &str, role: Role, ttl: Option<Ttl>) -> Result<NewToken> {
        self.create_scoped(name, role, ttl, Vec::new()).await
    }

    /// Like [`TokenStore::create`], for a token that is limited to these scopes; an empty list means
    /// no restriction.
    pub async fn create_scoped(
        &self,
        name: &str,
        role: Role,
        ttl: Option<Ttl>,
        scopes: Vec<Scope>,
    ) -> Result<NewToken> {
        leasehold::model::Holder::new(name)?;
        let store = self.leasehold.store();
        let docs = docs(&*store)?;
        let now = docs.time().await?.about();
        let text = TokenText::random();
        let record = Record {
            name: name.to_owned(),
            role,
            hash: text.hash(),
            created_at: now,
            expires_at: ttl.map(|ttl| now.plus(ttl)),
            revoked_at: None,
            scopes,
        };
        match docs.put_if(&key(&text.id), None, document(&record)).await? {
            PutIf::Written(_) => Ok(NewToken { id: text.id.clone(), text: text.expose() }),
            PutIf::Conflict(_) => Err(broken("a new token has the id of an existing token")),
        }
    }

    /// Returns all tokens, including revoked ones.
    pub async fn list(&self) -> Result<Vec<TokenStatus>> {
        let store = self.leasehold.store();
        let docs = docs(&*store)?;
        let now = docs.time().await?.about();
        let (mut all, mut after) = (Vec::new(), None::<Cursor>);
        loop {
            let page = docs.list(&key(""), after, PAGE_SIZE).await?;
            for (key, doc) in &page.items {
                all.push(parse(doc)?.status(key, now));
            }
            after = page.next;
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    /// Revokes a token. All servers over this store reject it within a second.
    pub async fn revoke(&self, id: &str) -> Result<TokenStatus> {
        let store = self.leasehold.store();
        let docs = docs(&*store)?;
        let now = docs.time().await?.about();
        let mut found = docs.get(&key(id)).await?;
        loop {
            let Some(doc) = found else {
                return Err(ValidationError::other(format!(
                    "there is no token '{id}'; list the tokens with: leasehold token list"
                ))
                .into());
            };
            let mut record = parse(&doc)?;
            record.revoked_at.get_or_insert(now);
            match docs.put_if(&key(id), Some(doc.version), document(&record)).await? {
                PutIf::Written(_) => return Ok(record.status(&key(id), now)),
                PutIf::Conflict(newer) => found = newer,
            }
        }
    }

    /// Whether no token exists or ever existed.
    pub async fn is_empty(&self) -> Result<bool> {
        let store = self.leasehold.store();
        let Ok(docs) = docs(&*store) else { return Ok(true) };
        Ok(docs.list(&key(""), None, 1).await?.items.is_empty())
    }

    /// Returns the record of this token, or `None` if the token is unknown, expired or revoked.
    pub(super) async fn find(&self, text: &TokenText) -> Result<Option<Record>> {
        let record = match self.cached(&text.id) {
            Some(record) => record,
            None => self.load(&text.id).await?,
        };
        let Some(record) = record.filter(|record| record.hash.is_of(text)) else { return Ok(None) };
        if record.expires_at.is_none() {
            return Ok(Some(record));
        }
        let now = self.leasehold.now().await?;
        Ok(Some(record).filter(|record| record.is_active(now)))
    }

    #[expect(clippy::option_option, reason = "the outer option is the cache entry, the inner one the token")]
    fn cached(&self, id: &str) -> Option<Option<Record>> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, record) = cache.get(id)?;
        (BootInstant::now().after(*since) < CACHE_TTL).then(|| record.clone())
    }

    async fn load(&self, id: &str) -> Result<Option<Record>> {
        let since = BootInstant::now();
        let store = self.leasehold.store();
        let Ok(docs) = docs(&*store) else { return Ok(None) };
        let record = docs.get(&key(id)).await?.as_ref().map(parse).transpose()?;
        let record = record.filter(|record| record.revoked_at.is_none());
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= MAX_CACHED {
            cache.clear();
        }
        cache.insert(id.to_owned(), (since, record.clone()));
        Ok(record)
    }
}

impl Record {
    fn is_active(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }

    fn status(&self, at: &str, now: Timestamp) -> TokenStatus {
        let time = |time: Timestamp| format!("{time:#}");
        TokenStatus {
            id: at.trim_start_matches(&key("")).to_owned(),
            name: self.name.clone(),
            role: self.role,
            created_at: time(self.created_at),
            expires_at: self.expires_at.map(time),
            revoked_at: self.revoked_at.map(time),
            scopes: self.scopes.clone(),
            active: self.is_active(now),
        }
    }
}

fn key(id: &str) -> String {
    format!("{RESERVED_PREFIX}server/token/{id}")
}

fn docs(store: &dyn leasehold::store::Store) -> Result<&dyn DocumentStore> {
    store.documents().ok_or_else(|| {
        let invalid =
            format!("{} does not support tokens; put their hashes into leasehold.toml", store.url());
        ValidationError::other(invalid).into()
    })
}

fn document(record: &Record) -> NewDocument {
    let body = serde_json::to_string(record).expect("a token record is serializable");
    NewDocument::new(body)
}

fn parse(doc: &Document) -> Result<Record> {
    serde_json::from_str(&doc.body).map_err(|error| broken(format!("invalid token record: {error}")))
}

fn broken(message: impl Into<String>) -> Error {
    Error::Store { kind: StoreErrorKind::Broken, message: message.into(), hint: String::new(), source: None }
}
