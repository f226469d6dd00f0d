//! The calls on documents, and who may make them. The server's own are nobody's business.

use axum::response::Response;
use leasehold::model::{MAX_PAYLOAD, Schedule, Ttl, check_depth};
use leasehold::store::protocol::{DocCall, MOST_KEYS};
use leasehold::store::{Cursor, DocStore, Document, NewDocument, Page, RESERVED_PREFIX};

use super::routes::answer;
use super::tasks::MOST_AT_ONCE;
use crate::access::{Caller, Reader, Role};
use crate::body::parse;
use crate::problem::{Answer, Problem};
use crate::server::App;
use crate::webhooks::must_not_claim_a_webhook;

/// Longest key of a document, in bytes.
const LONGEST_KEY: usize = 512;
/// Largest document, in bytes: a schedule has a payload.
const LARGEST_DOC: usize = 2 * MAX_PAYLOAD;
/// What the keys of schedules begin with.
const SCHEDULE: &str = "schedule/";

pub(super) async fn call(app: &App, caller: &Caller<Reader>, call: DocCall, body: &[u8]) -> Answer<Response> {
    let store = app.leasehold().store();
    let Some(docs) = store.docs() else {
        return Err(Problem::new("NOT_SUPPORTED", "the store of this server has no documents"));
    };
    if !matches!(call, DocCall::Time) {
        caller.who().must_reach_all()?;
    }
    match call {
        DocCall::Get => {
            let (keys,): (Vec<String>,) = parse(body)?;
            if keys.len() > MOST_KEYS {
                return Err(Problem::invalid(format!("one request is for {MOST_KEYS} documents at most")));
            }
            keys.iter().try_for_each(|key| must_not_be_ours(key))?;
            answer(docs.get_all(&keys).await)
        }
        DocCall::PutIf => {
            let (key, expected, body, keep): (String, Option<u64>, String, Option<Ttl>) = parse(body)?;
            must_not_be_ours(&key)?;
            caller.must_be(role_to_write(&key))?;
            must_be_small(&key, &body)?;
            must_not_schedule_a_webhook(&key, &body)?;
            answer(docs.put_if(&key, expected, NewDocument { body, facts: Vec::new(), keep }).await)
        }
        DocCall::List => {
            let (prefix, after, limit): (String, Option<Cursor>, u32) = parse(body)?;
            must_not_be_ours(&prefix)?;
            if let Some(after) = &after {
                must_not_be_ours(&after.0)?;
            }
            answer(list(docs, &prefix, after, limit.min(MOST_AT_ONCE)).await)
        }
        DocCall::Time => answer(docs.time().await),
    }
}

/// Who may make this call at all.
pub(super) fn role(call: DocCall) -> Role {
    match call {
        DocCall::Get | DocCall::List | DocCall::Time => Role::Reader,
        DocCall::PutIf => Role::Worker,
    }
}

/// The least role that may write this document: where REST has a path for the same thing, the role of that path.
fn role_to_write(key: &str) -> Role {
    if key.starts_with(SCHEDULE) {
        Role::Operator
    } else if key.starts_with("retention/") {
        Role::Admin
    } else {
        Role::Worker
    }
}

/// Documents are kept until they are overwritten: neither a key nor a text is larger than those of a schedule can be.
fn must_be_small(key: &str, body: &str) -> Answer<()> {
    if key.is_empty() || key.len() > LONGEST_KEY {
        return Err(Problem::invalid(format!("the key of a document has 1 to {LONGEST_KEY} bytes")));
    }
    if body.len() > LARGEST_DOC {
        return Err(Problem::new("TOO_LARGE", format!("a document has at most {LARGEST_DOC} bytes")));
    }
    Ok(check_depth(body)?)
}

/// A schedule writes the payloads of its tasks. What is no schedule makes none.
fn must_not_schedule_a_webhook(key: &str, body: &str) -> Answer<()> {
    let schedule = key.starts_with(SCHEDULE).then(|| serde_json::from_str::<Schedule>(body).ok()).flatten();
    schedule.map_or(Ok(()), |schedule| must_not_claim_a_webhook(&schedule.queue, &schedule.payload))
}

/// A page without what is the server's own, which may be in the middle of it.
async fn list(
    docs: &dyn DocStore,
    prefix: &str,
    mut after: Option<Cursor>,
    limit: u32,
) -> leasehold::Result<Page<(String, Document)>> {
    let mut items = Vec::new();
    loop {
        let page = docs.list(prefix, after, limit).await?;
        let ends_with_ours = page.items.last().is_some_and(|(key, _)| is_ours(key));
        items.extend(page.items.into_iter().filter(|(key, _)| !is_ours(key)));
        after = page.next;
        // A cursor may be made of the last key, and that is not for everybody.
        if after.is_none() || !ends_with_ours {
            return Ok(Page { items, next: after });
        }
    }
}

fn is_ours(key: &str) -> bool {
    key.strip_prefix(RESERVED_PREFIX).is_some_and(|key| key.starts_with("server/"))
}

fn must_not_be_ours(key: &str) -> Answer<()> {
    if is_ours(key) {
        return Err(Problem::new("FORBIDDEN", "these documents are the server's own").hint(
            "run it against the server's own store: --store with the URL that the server was started with",
        ));
    }
    Ok(())
}
