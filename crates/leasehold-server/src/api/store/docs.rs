//! Document calls of the store protocol and the roles that they require. The server's own documents
//! are not accessible.

use axum::response::Response;
use leasehold::model::{MAX_PAYLOAD, Schedule, Ttl, check_depth};
use leasehold::store::protocol::{DocCall, MOST_KEYS};
use leasehold::store::{Cursor, Document, DocumentStore, NewDocument, Page, RESERVED_PREFIX};

use super::deadline::json_result;
use super::tasks::MAX_PER_CALL;
use crate::access::{Identity, Role};
use crate::body::parse;
use crate::problem::{ApiResult, Problem};
use crate::server::App;
use crate::webhooks::must_not_claim_a_webhook;

const MAX_KEY_BYTES: usize = 512;
/// Maximum size of a document: a schedule contains a payload.
const MAX_DOCUMENT_BYTES: usize = 2 * MAX_PAYLOAD;
const SCHEDULE_PREFIX: &str = "schedule/";
const OUTPUT_PREFIX: &str = "output/";

pub(super) async fn call(app: &App, caller: &Identity, call: DocCall, body: &[u8]) -> ApiResult<Response> {
    let store = app.leasehold.store();
    let Some(docs) = store.documents() else {
        return Err(Problem::new("NOT_SUPPORTED", "the store of this server does not support documents"));
    };
    match call {
        DocCall::Get => {
            let (keys,): (Vec<String>,) = parse(body)?;
            caller.must_reach_all()?;
            if keys.len() > MOST_KEYS {
                return Err(Problem::invalid(format!(
                    "too many keys: at most {MOST_KEYS} documents per request"
                )));
            }
            keys.iter().try_for_each(|key| must_not_be_reserved(key))?;
            json_result(docs.get_all(&keys).await)
        }
        DocCall::PutIf => {
            let (key, expected, body, keep): (String, Option<u64>, String, Option<Ttl>) = parse(body)?;
            must_reach(app, caller, &key).await?;
            must_not_be_reserved(&key)?;
            caller.must_be(role_to_write(&key))?;
            must_be_small(&key, &body)?;
            must_not_schedule_a_webhook(&key, &body)?;
            json_result(docs.put_if(&key, expected, NewDocument::new(body).keep(keep)).await)
        }
        DocCall::List => {
            let (prefix, after, limit): (String, Option<Cursor>, u32) = parse(body)?;
            must_reach(app, caller, &prefix).await?;
            must_not_be_reserved(&prefix)?;
            if let Some(after) = &after {
                must_not_be_reserved(&after.0)?;
            }
            json_result(list(docs, &prefix, after, limit.min(MAX_PER_CALL)).await)
        }
        DocCall::Time => json_result(docs.time().await),
    }
}

pub(super) fn role(call: DocCall) -> Role {
    match call {
        DocCall::Get | DocCall::List | DocCall::Time => Role::Reader,
        DocCall::PutIf => Role::Worker,
    }
}

/// Checks that the scopes of the caller include a document: a token with scopes reaches the output of
/// the tasks in its queues, and no other document.
async fn must_reach(app: &App, caller: &Identity, key: &str) -> ApiResult<()> {
    let task = key.strip_prefix(OUTPUT_PREFIX).and_then(|rest| rest.split_once('/'));
    match task.and_then(|(id, _)| id.parse().ok()) {
        Some(id) if caller.is_scoped() => {
            caller.must_reach_queue(&app.leasehold.tasks()?.get(id).await?.queue)
        }
        _ => caller.must_reach_all(),
    }
}

/// Returns the minimum role for writing this document: the role of the REST endpoint for the same
/// resource, if there is one.
fn role_to_write(key: &str) -> Role {
    if key.starts_with(SCHEDULE_PREFIX) {
        Role::Operator
    } else if key.starts_with("retention/") {
        Role::Admin
    } else {
        Role::Worker
    }
}

/// Limits keys and bodies to the size of a schedule, because documents are kept until they are
/// overwritten.
fn must_be_small(key: &str, body: &str) -> ApiResult<()> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(Problem::invalid(format!("invalid document key: must have 1 to {MAX_KEY_BYTES} bytes")));
    }
    if body.len() > MAX_DOCUMENT_BYTES {
        return Err(Problem::new(
            "TOO_LARGE",
            format!("the document is larger than {MAX_DOCUMENT_BYTES} bytes"),
        ));
    }
    Ok(check_depth(body)?)
}

/// Rejects a schedule whose tasks would claim to be started by a webhook. A document that is not a
/// schedule creates no tasks.
fn must_not_schedule_a_webhook(key: &str, body: &str) -> ApiResult<()> {
    let schedule =
        key.starts_with(SCHEDULE_PREFIX).then(|| serde_json::from_str::<Schedule>(body).ok()).flatten();
    schedule.map_or(Ok(()), |schedule| must_not_claim_a_webhook(&schedule.queue, &schedule.payload))
}

/// Returns a page without the server's own documents, which may be in the middle of it.
async fn list(
    docs: &dyn DocumentStore,
    prefix: &str,
    mut after: Option<Cursor>,
    limit: u32,
) -> leasehold::Result<Page<(String, Document)>> {
    let mut items = Vec::new();
    loop {
        let page = docs.list(prefix, after, limit).await?;
        let ends_with_reserved = page.items.last().is_some_and(|(key, _)| is_reserved(key));
        items.extend(page.items.into_iter().filter(|(key, _)| !is_reserved(key)));
        after = page.next;
        // A cursor may contain the last key, which must not be a reserved one.
        if after.is_none() || !ends_with_reserved {
            return Ok(Page::new(items, after));
        }
    }
}

fn is_reserved(key: &str) -> bool {
    key.strip_prefix(RESERVED_PREFIX).is_some_and(|key| key.starts_with("server/"))
}

fn must_not_be_reserved(key: &str) -> ApiResult<()> {
    if is_reserved(key) {
        return Err(Problem::new("FORBIDDEN", "this document is reserved for the server").hint(
            "run it against the server's own store: --store with the URL that the server was started with",
        ));
    }
    Ok(())
}
