//! The tokens in the store: making, listing, revoking, finding.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::model::{Invalid, Timestamp, Ttl};
use leasehold::store::{BACK_ROOM, Cursor, Doc, DocStore, Draft, PutIf};
use leasehold::{Error, Leasehold, Moment, Result, Trouble};
use serde::{Deserialize, Serialize};

use super::token::{Hash, TokenText};
use super::{Role, Scope};

/// So long what was read of a token is good. A token that was revoked is refused after this at the latest.
const FRESH: Duration = Duration::from_secs(1);
/// So many tokens are remembered; requests with made-up ids must not fill the memory.
const REMEMBERED: usize = 10_000;
const PAGE: u32 = 500;

/// The tokens of a store.
pub struct TokenDesk {
    leasehold: Leasehold,
    known: Mutex<HashMap<String, (Moment, Option<Record>)>>,
}

/// What is kept of a token.
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
    /// What it reaches; everything if there is none. A server that cannot read one of them lets nobody in with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) scopes: Vec<Scope>,
}

/// A token that was made. Its text is shown once, and kept by nobody but its owner.
pub struct NewToken {
    /// What it is called by.
    pub id: String,
    /// The token itself.
    pub text: String,
}

/// A token as others may see it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenStatus {
    /// What it is called by.
    pub id: String,
    /// Whose it is.
    pub name: String,
    /// What it allows.
    pub role: Role,
    /// Since when.
    pub created_at: String,
    /// Until when, if it ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Since when it is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<String>,
    /// What it reaches; everything if there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<Scope>,
    /// Whether it is let in now.
    pub active: bool,
}

impl TokenDesk {
    /// The tokens of this store.
    pub fn new(leasehold: Leasehold) -> Self {
        Self { leasehold, known: Mutex::default() }
    }

    /// Makes one. `name` says whose it is, in lists and as the holder of what is taken with it.
    pub async fn create(&self, name: &str, role: Role, lasts: Option<Ttl>) -> Result<NewToken> {
        self.create_scoped(name, role, lasts, Vec::new()).await
    }

    /// The same, for a token that reaches only what these scopes name; everything if there is none.
    pub async fn create_scoped(
        &self,
        name: &str,
        role: Role,
        lasts: Option<Ttl>,
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
            expires_at: lasts.map(|lasts| now.plus(lasts)),
            revoked_at: None,
            scopes,
        };
        match docs.put_if(&key(&text.id), None, draft(&record)).await? {
            PutIf::Written(_) => Ok(NewToken { id: text.id.clone(), text: text.expose() }),
            PutIf::Clash(_) => Err(broken("a new token has the id of another")),
        }
    }

    /// All of them, the revoked ones too.
    pub async fn list(&self) -> Result<Vec<TokenStatus>> {
        let store = self.leasehold.store();
        let docs = docs(&*store)?;
        let now = docs.time().await?.about();
        let (mut all, mut after) = (Vec::new(), None::<Cursor>);
        loop {
            let page = docs.list(&key(""), after, PAGE).await?;
            for (key, doc) in &page.items {
                all.push(read(doc)?.status(key, now));
            }
            after = page.next;
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    /// From now on it is refused, by all servers over this store, within a second.
    pub async fn revoke(&self, id: &str) -> Result<TokenStatus> {
        let store = self.leasehold.store();
        let docs = docs(&*store)?;
        let now = docs.time().await?.about();
        let mut found = docs.get(&key(id)).await?;
        loop {
            let Some(doc) = found else {
                return Err(Invalid(format!(
                    "there is no token '{id}'; see them with: leasehold token list"
                ))
                .into());
            };
            let mut record = read(&doc)?;
            record.revoked_at.get_or_insert(now);
            match docs.put_if(&key(id), Some(doc.version), draft(&record)).await? {
                PutIf::Written(_) => return Ok(record.status(&key(id), now)),
                PutIf::Clash(newer) => found = newer,
            }
        }
    }

    /// Whether there is or ever was one.
    pub async fn is_empty(&self) -> Result<bool> {
        let store = self.leasehold.store();
        let Ok(docs) = docs(&*store) else { return Ok(true) };
        Ok(docs.list(&key(""), None, 1).await?.items.is_empty())
    }

    /// Who has this token, if anybody has.
    pub(super) async fn find(&self, text: &TokenText) -> Result<Option<Record>> {
        let record = match self.remembered(&text.id) {
            Some(record) => record,
            None => self.look_up(&text.id).await?,
        };
        let Some(record) = record.filter(|record| record.hash.is_of(text)) else { return Ok(None) };
        if record.expires_at.is_none() {
            return Ok(Some(record));
        }
        let now = self.leasehold.now().await?;
        Ok(Some(record).filter(|record| record.is_active(now)))
    }

    #[expect(clippy::option_option, reason = "known to be nobody's is something else than not remembered")]
    fn remembered(&self, id: &str) -> Option<Option<Record>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, record) = known.get(id)?;
        (Moment::now().after(*since) < FRESH).then(|| record.clone())
    }

    async fn look_up(&self, id: &str) -> Result<Option<Record>> {
        let asked = Moment::now();
        let store = self.leasehold.store();
        let Ok(docs) = docs(&*store) else { return Ok(None) };
        let record = docs.get(&key(id)).await?.as_ref().map(read).transpose()?;
        let record = record.filter(|record| record.revoked_at.is_none());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(id.to_owned(), (asked, record.clone()));
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
    format!("{BACK_ROOM}server/token/{id}")
}

fn docs(store: &dyn leasehold::store::Store) -> Result<&dyn DocStore> {
    store.docs().ok_or_else(|| {
        let invalid = format!("{} keeps no tokens; put their hashes into leasehold.toml", store.url());
        Invalid(invalid).into()
    })
}

fn draft(record: &Record) -> Draft {
    let body = serde_json::to_string(record).expect("a record of plain values can be written");
    Draft { body, facts: Vec::new(), keep: None }
}

fn read(doc: &Doc) -> Result<Record> {
    serde_json::from_str(&doc.body).map_err(|error| broken(format!("a token cannot be read: {error}")))
}

fn broken(message: impl Into<String>) -> Error {
    Error::Store { trouble: Trouble::Broken, message: message.into(), hint: String::new(), source: None }
}
