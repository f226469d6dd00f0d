//! API tokens: their text, the hash that is stored, and the tokens in the store. The secret is random and
//! long, so a plain hash protects it at rest.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold::model::{Holder, Timestamp, Ttl, ValidationError};
use leasehold::store::{Cursor, Document, DocumentStore, NewDocument, PutIf, RESERVED_PREFIX, Store};
use leasehold::{BootInstant, Leasehold, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;

use super::{Role, Scope};
use crate::problem::broken;
use crate::sync::locked;

const PREFIX: &str = "lh_";

/// Text of a token: `lh_<id>_<secret>`. The id locates the token, the secret authenticates it.
pub(crate) struct TokenText {
    pub(crate) id: String,
    secret: String,
}

impl TokenText {
    pub(crate) fn random() -> Self {
        let id = Uuid::new_v4().simple().to_string()[..12].to_owned();
        let (one, two) = (Uuid::new_v4(), Uuid::new_v4());
        let secret = URL_SAFE_NO_PAD.encode([*one.as_bytes(), *two.as_bytes()].concat());
        Self { id, secret }
    }

    /// Parses the credentials of a request. Returns `None` for text that is not a token.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let is_valid = id.len() == 12 && is_plain(id) && !secret.is_empty() && secret.len() <= 128;
        is_valid.then(|| Self { id: id.to_owned(), secret: secret.to_owned() })
    }

    /// Returns the full text, meant only for the owner of the token.
    pub(crate) fn expose(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, self.secret)
    }

    pub(crate) fn hash(&self) -> Hash {
        Hash(Sha256::digest(self.expose().as_bytes()).into())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Hash([u8; 32]);

impl Hash {
    /// Whether this is the hash of `text`. Compares in constant time.
    pub(crate) fn is_of(&self, text: &TokenText) -> bool {
        self.0.ct_eq(&text.hash().0).into()
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> String {
        format!("sha256:{}", URL_SAFE_NO_PAD.encode(hash.0))
    }
}

impl TryFrom<String> for Hash {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        let invalid = || {
            ValidationError::other(
                "invalid token hash: must be sha256:…, as printed by `leasehold token new --print-hash`",
            )
        };
        let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix("sha256:").ok_or_else(invalid)?);
        bytes.ok().and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or_else(invalid)
    }
}

/// Words between the name that a caller claims and the name of its token, as in `ada via ci`.
pub(super) const VIA: &str = " via ";

/// Name of a new token. It must not look like a claimed name with the name of another token: that token would
/// own what this one starts.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct TokenName(String);

impl TokenName {
    fn new(text: impl Into<String>) -> Result<Self, ValidationError> {
        let text = text.into();
        Holder::new(&text)?;
        if text.contains(VIA) || text.starts_with(VIA.trim_start()) {
            return Err(ValidationError::other(format!(
                "invalid token name '{text}': must not contain '{VIA}' or begin with '{}', which stands before the name of \
                 a token in records",
                VIA.trim_start()
            )));
        }
        Ok(Self(text))
    }
}

impl TryFrom<String> for TokenName {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        Self::new(text)
    }
}

impl From<TokenName> for String {
    fn from(name: TokenName) -> String {
        name.0
    }
}

/// Token defined in the settings instead of the store.
#[derive(Debug, Clone)]
pub struct FixedToken {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) hash: Hash,
    pub(crate) scopes: Vec<Scope>,
}

impl FixedToken {
    /// Creates a token from its hash, as printed by `leasehold token new --print-hash`.
    pub fn new(name: impl Into<String>, role: Role, hash: &str) -> Result<Self, ValidationError> {
        let name = TokenName::new(name)?.into();
        Ok(Self { name, role, hash: hash.to_owned().try_into()?, scopes: Vec::new() })
    }

    /// Creates a token from its text; `None` if the text is not a token.
    pub fn of_text(name: impl Into<String>, role: Role, text: &str) -> Option<Self> {
        let hash = TokenText::parse(text)?.hash();
        Some(Self { name: name.into(), role, hash, scopes: Vec::new() })
    }

    /// Limits the token to these scopes.
    #[must_use]
    pub fn scopes(mut self, scopes: Vec<Scope>) -> Self {
        self.scopes = scopes;
        self
    }

    /// Generates a token without storing it. Returns its text, for the owner, and its hash, for the
    /// settings.
    pub fn generate() -> (String, String) {
        let text = TokenText::random();
        (text.expose(), text.hash().into())
    }
}

/// Cache lifetime of a token record. A revoked or expired token is rejected after this time at the latest.
const CACHE_TTL: Duration = Duration::from_secs(1);
/// Maximum number of cached tokens, so that requests with invented ids cannot fill the memory.
const MAX_CACHED: usize = 10_000;
const PAGE_SIZE: u32 = 500;

/// API tokens of a store.
pub struct TokenStore {
    leasehold: Leasehold,
    cache: Mutex<HashMap<String, (BootInstant, Option<Record>)>>,
}

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
    /// with the token. A name such as `ada via ci` is rejected: the server writes it for a caller that
    /// claims to be `ada` and uses the token `ci`.
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
        let name = TokenName::new(name)?.into();
        let store = self.leasehold.store();
        let docs = docs(&*store)?;
        let now = docs.time().await?.about();
        let text = TokenText::random();
        let record = Record {
            name,
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

    /// Returns all tokens, including revoked ones, in the order of their creation.
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
                all.sort_by(|one, other| (&one.created_at, &one.id).cmp(&(&other.created_at, &other.id)));
                return Ok(all);
            }
        }
    }

    /// Revokes a token; `None` if there is no token with this id. All servers over this store reject it within a
    /// second.
    pub async fn revoke(&self, id: &str) -> Result<Option<TokenStatus>> {
        let store = self.leasehold.store();
        let docs = docs(&*store)?;
        let now = docs.time().await?.about();
        let mut found = docs.get(&key(id)).await?;
        loop {
            let Some(doc) = found else { return Ok(None) };
            let mut record = parse(&doc)?;
            record.revoked_at.get_or_insert(now);
            match docs.put_if(&key(id), Some(doc.version), document(&record)).await? {
                PutIf::Written(_) => return Ok(Some(record.status(&key(id), now))),
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
        let is_fresh = |since: BootInstant| BootInstant::now().after(since) < CACHE_TTL;
        let cached = locked(&self.cache).get(&text.id).filter(|(since, _)| is_fresh(*since)).cloned();
        let record = match cached {
            Some((_, record)) => record,
            None => self.load(&text.id).await?,
        };
        Ok(record.filter(|record| record.hash.is_of(text)))
    }

    /// Reads the record of a token that is neither revoked nor expired, and caches it.
    async fn load(&self, id: &str) -> Result<Option<Record>> {
        let since = BootInstant::now();
        let store = self.leasehold.store();
        let Ok(docs) = docs(&*store) else { return Ok(None) };
        let record = docs.get(&key(id)).await?.as_ref().map(parse).transpose()?;
        let mut record = record.filter(|record| record.revoked_at.is_none());
        if record.as_ref().is_some_and(|record| record.expires_at.is_some()) {
            let now = self.leasehold.now().await?;
            record = record.filter(|record| record.is_active(now));
        }
        let mut cache = locked(&self.cache);
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

fn docs(store: &dyn Store) -> Result<&dyn DocumentStore> {
    store.documents().ok_or_else(|| {
        let url = store.url();
        let invalid = format!("{url} does not support tokens; put their hashes into leasehold.toml");
        ValidationError::other(invalid).into()
    })
}

fn document(record: &Record) -> NewDocument {
    NewDocument::new(serde_json::to_string(record).expect("a token record is serializable"))
}

fn parse(doc: &Document) -> Result<Record> {
    serde_json::from_str(&doc.body).map_err(|error| broken(format!("invalid token record: {error}")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold::store::Clock;
    use leasehold::store::memory::MemoryStore;

    use super::*;

    /// The record and the time of the store are read once a second, not for each request.
    #[tokio::test]
    async fn a_token_expires_without_a_read_of_the_clock_for_each_request() {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let leasehold = Leasehold::with_store(Arc::new(MemoryStore::with_clock(clock.clone()))).unwrap();
        let (leasehold, counters) = leasehold.instrumented();
        let tokens = TokenStore::new(leasehold);
        let new = tokens.create("ci", Role::Worker, Some(Ttl::from_secs(60))).await.unwrap();
        let text = TokenText::parse(&new.text).unwrap();
        let calls = async || {
            let operations = counters.read().await.operations;
            operations.iter().map(|operation| operation.took.counts.iter().sum::<u64>()).sum::<u64>()
        };
        let began = BootInstant::now();
        assert!(tokens.find(&text).await.unwrap().is_some());
        let before = calls().await;
        for _ in 0..1000 {
            tokens.find(&text).await.unwrap();
        }
        let (during, seconds) = (calls().await - before, BootInstant::now().after(began).as_secs());
        assert!(during <= 2 * seconds, "{during} calls in {seconds} s");
        clock.advance(Duration::from_mins(1));
        while tokens.find(&text).await.unwrap().is_some() {
            assert!(BootInstant::now().after(began) < Duration::from_mins(1), "it does not expire");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[tokio::test]
    async fn a_new_token_has_not_the_name_of_a_caller_with_another_token() {
        let tokens = TokenStore::new(Leasehold::connect("memory:").await.unwrap());
        let hash = FixedToken::generate().1;
        for name in ["nightly via ci", "ada via via ci", "via ci"] {
            let refused = tokens.create(name, Role::Worker, None).await.err().unwrap();
            assert!(refused.to_string().contains(&format!("invalid token name '{name}'")), "{refused}");
            assert!(FixedToken::new(name, Role::Worker, &hash).is_err(), "{name}");
        }
        assert!(tokens.is_empty().await.unwrap());
        for name in ["ci", "via", "viaduct", "ci-via-proxy", "ada via"] {
            assert!(tokens.create(name, Role::Worker, None).await.is_ok(), "{name}");
        }
    }

    #[test]
    fn a_hash_matches_only_the_text_of_its_token() {
        let token = TokenText::random();
        let read = TokenText::parse(&token.expose()).unwrap();
        assert!(token.hash().is_of(&read));
        assert!(!token.hash().is_of(&TokenText::random()));
        let mut other = token.expose();
        other.push('x');
        assert!(!token.hash().is_of(&TokenText::parse(&other).unwrap()));
    }

    #[test]
    fn text_that_is_not_a_token_is_rejected() {
        for text in ["", "lh_", "lh_short_x", "Bearer x", "lh_0123456789ab_", "lh_0123456789ä_x"] {
            assert!(TokenText::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_hash_survives_the_round_trip_through_its_text() {
        let hash = TokenText::random().hash();
        assert_eq!(Hash::try_from(String::from(hash.clone())).unwrap(), hash);
        assert!(Hash::try_from("sha256:abc".to_owned()).is_err());
    }
}
