//! Document calls of the store protocol and the roles that they require. The server's own documents
//! are not accessible.

use std::collections::HashSet;

use axum::Json;
use axum::response::{IntoResponse, Response};
use leasehold::model::{MAX_PAYLOAD, Schedule, TaskId, Token, Ttl, check_depth};
use leasehold::store::protocol::{DocCall, MAX_KEYS};
use leasehold::store::{Cursor, Document, DocumentStore, NewDocument, Page};

use super::deadline::json_result;
use crate::access::{Identity, Role};
use crate::problem::{ApiResult, Problem};
use crate::request::body::parse;
use crate::server::App;
use crate::webhooks::must_not_claim_a_webhook;

const MAX_KEY_BYTES: usize = 512;
/// Maximum size of a document: a schedule contains a payload.
const MAX_DOCUMENT_BYTES: usize = 2 * MAX_PAYLOAD;
const SCHEDULE_PREFIX: &str = "schedule/";
const OUTPUT_PREFIX: &str = "output/";
/// Prefix of the server's own documents, which has the reserved prefix of the store.
const OWN_PREFIX: &str = "\u{1}server/";
/// Text that follows all keys with that prefix.
const AFTER_OWN: &str = "\u{1}server0";
/// Bytes at which a response with documents is full, as with pages of tasks.
const FULL: usize = 8 << 20;
/// Maximum number of documents that one call lists, and the number if the call gives none, as in the engines.
const MAX_LISTED: u32 = 1000;
const DEFAULT_LISTED: u32 = 100;
/// Maximum number of documents that are read at once behind small ones, such as schedules.
const MAX_PART: u32 = 64;
/// Maximum size of a part whose documents count as small.
const SMALL_PART: usize = 64 << 10;

pub(super) async fn call(app: &App, caller: &Identity, call: DocCall, body: &[u8]) -> ApiResult<Response> {
    let store = app.leasehold.store();
    let Some(docs) = store.documents() else {
        return Err(Problem::new("NOT_SUPPORTED", "the store of this server does not support documents"));
    };
    match call {
        DocCall::Get => {
            let (keys,): (Vec<String>,) = parse(body)?;
            caller.must_reach_all()?;
            if keys.len() > MAX_KEYS {
                return Err(Problem::invalid(format!(
                    "too many keys: at most {MAX_KEYS} documents per request"
                )));
            }
            keys.iter().try_for_each(|key| must_not_be_reserved(key))?;
            Ok(Json(get_all(docs, &keys).await?).into_response())
        }
        DocCall::PutIf => {
            let (key, expected, body, keep): (String, Option<u64>, String, Option<Ttl>) = parse(body)?;
            must_reach(app, caller, &key).await?;
            must_not_be_reserved(&key)?;
            caller.must_be(role_to_write(&key))?;
            must_be_small(&key, &body)?;
            must_own_output(app, caller, &key).await?;
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
            json_result(list(docs, &prefix, after, limit).await)
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

/// Rejects output of an attempt that no worker of the caller has made: every reader sees the ids and the
/// tokens of tasks. An operator may write any.
async fn must_own_output(app: &App, caller: &Identity, key: &str) -> ApiResult<()> {
    let Some(attempt) = key.strip_prefix(OUTPUT_PREFIX) else { return Ok(()) };
    if !caller.has_token || caller.role >= Role::Operator {
        return Ok(());
    }
    let Some((id, token)) = attempt_of(attempt) else {
        let form = format!("{OUTPUT_PREFIX}TASK/TOKEN, with the UUID of the task and a token of 20 digits");
        return Err(Problem::invalid(format!("invalid document key: the output of an attempt is {form}")));
    };
    let store = app.leasehold.store();
    let Some(tasks) = store.tasks() else {
        return Err(Problem::new("NOT_SUPPORTED", "the store of this server does not support tasks"));
    };
    let mut checked = token;
    app.task_owners.check(tasks, caller, vec![(id, &mut checked)]).await?;
    if checked == token {
        return Ok(());
    }
    // A worker that has lost its lease writes the last output, too.
    let tag = caller.worker_tag();
    let is_of_caller = |worker| tag.is_some_and(|tag| tag.is_on(worker));
    let events = tasks.get(id).await?.map(|task| task.events).unwrap_or_default();
    if events.iter().any(|event| event.token == token && event.worker.is_some_and(is_of_caller)) {
        return Ok(());
    }
    let detail = format!("no worker with the token '{}' has made attempt {token} at task {id}", caller.name);
    Err(Problem::new("FORBIDDEN", detail)
        .hint("use the token that leased the task, or the token of an operator"))
}

/// Parses the end of a key of output, exactly as workers write it.
fn attempt_of(text: &str) -> Option<(TaskId, Token)> {
    let (id, token) = text.split_once('/')?;
    let (id, token): (TaskId, _) = (id.parse().ok()?, Token::new(token.parse().ok()?).ok()?);
    (text == format!("{id}/{:020}", token.get())).then_some((id, token))
}

/// Returns several documents, in the order of the keys. Refuses those that are too large together; one
/// alone may have any size.
async fn get_all(docs: &dyn DocumentStore, keys: &[String]) -> ApiResult<Vec<Option<Document>>> {
    if keys.iter().collect::<HashSet<_>>().len() < keys.len() {
        return Err(Problem::invalid("invalid keys: each key must be given once"));
    }
    let (mut found, mut bytes) = (Vec::with_capacity(keys.len()), 0);
    for part in keys.chunks(part_size(docs) as usize) {
        let part = docs.get_all(part).await?;
        bytes += part.iter().flatten().map(json_bytes).sum::<usize>();
        if bytes > FULL && keys.len() > 1 {
            let problem =
                Problem::new("TOO_LARGE", format!("the documents have more than {FULL} bytes together"));
            return Err(problem.hint("read fewer documents per request"));
        }
        found.extend(part);
    }
    Ok(found)
}

/// Returns a page without the server's own documents, which may be in the middle of it. It ends early if its
/// documents are large. Every engine has the last key of a page as its cursor, so that the server's own
/// documents can be skipped, and a page can end at any document.
async fn list(
    docs: &dyn DocumentStore,
    prefix: &str,
    mut after: Option<Cursor>,
    limit: u32,
) -> leasehold::Result<Page<(String, Document)>> {
    let mut left = if limit == 0 { DEFAULT_LISTED } else { limit.min(MAX_LISTED) };
    let (mut items, mut bytes, mut part_size) = (Vec::new(), 0, part_size(docs));
    loop {
        let bytes_before = bytes;
        let part = docs.list(prefix, after, left.min(part_size)).await?;
        let mut found = part.items.into_iter();
        let mut ends_with_reserved = false;
        while let Some((key, document)) = found.next() {
            ends_with_reserved = is_reserved(&key);
            if ends_with_reserved {
                continue;
            }
            left -= 1;
            bytes += json_bytes(&document);
            let is_full = bytes >= FULL || left == 0;
            let has_more = !found.as_slice().is_empty() || part.next.is_some();
            let next = (is_full && has_more).then(|| Cursor(key.clone()));
            items.push((key, document));
            if is_full {
                return Ok(Page::new(items, next));
            }
        }
        after = part.next;
        if after.is_none() {
            return Ok(Page::new(items, None));
        }
        if bytes - bytes_before <= SMALL_PART {
            part_size = (2 * part_size).min(MAX_PART);
        }
        if ends_with_reserved {
            after = Some(Cursor(AFTER_OWN.to_owned()));
        }
    }
}

/// Returns the maximum number of documents that are read at once, so that they have at most 16 MiB.
fn part_size(docs: &dyn DocumentStore) -> u32 {
    // There an item has at most 400 KB, and each list reads the whole table.
    if docs.capabilities().engine == "dynamodb" { 40 } else { 8 }
}

/// Returns the size of a document in a response: in JSON, a control character has up to six bytes.
fn json_bytes(document: &Document) -> usize {
    let bytes = document.body.bytes().map(|byte| match byte {
        0..b' ' => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    });
    bytes.sum()
}

fn is_reserved(key: &str) -> bool {
    key.starts_with(OWN_PREFIX)
}

fn must_not_be_reserved(key: &str) -> ApiResult<()> {
    if is_reserved(key) {
        return Err(Problem::new("FORBIDDEN", "this document is reserved for the server").hint(
            "run it against the server's own store: --store with the URL that the server was started with",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold::Leasehold;
    use leasehold::store::{RESERVED_PREFIX, Store};

    use super::*;

    const MIB: usize = 1 << 20;

    /// Returns a store with a document of 1 MiB for each of these keys.
    async fn with_large_documents(keys: &[String]) -> Arc<dyn Store> {
        let store = Leasehold::connect("memory:").await.unwrap().store();
        for key in keys {
            let large = NewDocument::new("x".repeat(MIB));
            store.documents().unwrap().put_if(key, None, large).await.unwrap();
        }
        store
    }

    fn keys(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("{number:02}")).collect()
    }

    #[tokio::test]
    async fn a_list_skips_the_servers_own_documents() {
        assert!(OWN_PREFIX.starts_with(RESERVED_PREFIX) && OWN_PREFIX < AFTER_OWN);
        let (leasehold, counters) = Leasehold::connect("memory:").await.unwrap().instrumented();
        let store = leasehold.store();
        let docs = store.documents().unwrap();
        let own = (0..100).map(|number| format!("{OWN_PREFIX}tf-chunk/{number}"));
        for key in ["\u{1}before", "\u{1}zz"].map(str::to_owned).into_iter().chain(own) {
            docs.put_if(&key, None, NewDocument::new("x")).await.unwrap();
        }
        for limit in [10, 1000] {
            let page = list(docs, "\u{1}", None, limit).await.unwrap();
            let keys: Vec<_> = page.items.iter().map(|(key, _)| key.as_str()).collect();
            assert_eq!((keys, page.next), (vec!["\u{1}before", "\u{1}zz"], None));
        }
        let lists = counters.read().await.operations.into_iter().find(|operation| operation.op == "doc_list");
        assert_eq!(lists.unwrap().took.counts.iter().sum::<u64>(), 4, "two calls for each page");
    }

    #[tokio::test]
    async fn large_documents_are_on_several_pages() {
        let all = keys(18);
        let store = with_large_documents(&all).await;
        let docs = store.documents().unwrap();
        for (limit, sizes) in [(1000, vec![8, 8, 2]), (6, vec![6, 6, 6, 0])] {
            let (mut found, mut pages, mut after) = (Vec::new(), Vec::new(), None);
            loop {
                let page = list(docs, "", after, limit).await.unwrap();
                pages.push(page.items.len());
                found.extend(page.items.into_iter().map(|(key, _)| key));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!((&found, pages), (&all, sizes), "limit {limit}");
        }
    }

    #[tokio::test]
    async fn documents_that_are_too_large_together_are_not_read() {
        let all = keys(9);
        let store = with_large_documents(&all).await;
        let docs = store.documents().unwrap();
        assert_eq!(get_all(docs, &all).await.unwrap_err().code(), "TOO_LARGE");
        let found = get_all(docs, &all[1..]).await.unwrap();
        assert!(found.len() == 8 && found.iter().all(Option::is_some), "8 MiB");
        let escaped = NewDocument::new("\u{1}".repeat(2 * MIB));
        docs.put_if("escaped", None, escaped).await.unwrap();
        let escaped = ["escaped", "none"].map(str::to_owned);
        assert_eq!(get_all(docs, &escaped).await.unwrap_err().code(), "TOO_LARGE", "12 MiB as JSON");
        assert!(get_all(docs, &escaped[..1]).await.unwrap()[0].is_some(), "one document alone");
    }

    #[tokio::test]
    async fn documents_are_returned_in_the_order_of_their_keys() {
        let store = Leasehold::connect("memory:").await.unwrap().store();
        let docs = store.documents().unwrap();
        let mut all = keys(50);
        for key in &all {
            docs.put_if(key, None, NewDocument::new(key.as_str())).await.unwrap();
        }
        all.reverse();
        all.insert(20, "none".to_owned());
        let found = get_all(docs, &all).await.unwrap();
        let bodies: Vec<_> =
            found.iter().map(|doc| doc.as_ref().map_or("none", |doc| doc.body.as_str())).collect();
        assert_eq!(bodies, all);
        all.push(all[7].clone());
        assert_eq!(get_all(docs, &all).await.unwrap_err().code(), "INVALID", "a repeated key");
    }

    #[test]
    fn the_key_of_an_output_has_one_form() {
        let id = "01890a5d-ac96-774b-bcce-b302099a8057";
        let good = format!("{id}/00001700000000000000");
        let (task, token) = attempt_of(&good).unwrap();
        assert_eq!((task.to_string().as_str(), token.get()), (id, 1_700_000_000_000_000));
        for bad in [
            String::new(),
            id.to_owned(),
            format!("{id}/"),
            format!("{id}/1700000000000000"),
            format!("{id}/+0001700000000000000"),
            format!("{id}/99999999999999999999"),
            format!("{}/00001700000000000000", id.to_uppercase()),
            format!("{good}/more"),
            format!("/{good}"),
        ] {
            assert_eq!(attempt_of(&bad), None, "{bad}");
        }
    }
}
