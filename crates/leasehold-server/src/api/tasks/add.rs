//! Adding tasks: one, or many at once.

use std::fmt;

use axum::extract::{OriginalUri, Path, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use leasehold::client::TaskView;
use leasehold::model::{
    LockName, NewTask, Payload, Priority, QueueName, RetryPolicy, Reuse, TaskId, TaskKey,
};
use leasehold::{EnqueueBuilder, EnqueueResult};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::values::{bounded, duration, retries, time, wrong};
use crate::access::{Caller, Who, Worker};
use crate::body::Json;
use crate::described::{Attempts, IdempotencyKey, PauseSeconds, SomeSeconds};
use crate::problem::{Answer, Problem};
use crate::roles::routes;
use crate::server::App;
use crate::status;
use crate::webhooks::must_not_claim_a_webhook;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(add))
}

/// A task to be added.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewTaskBody {
    /// What it is about: any JSON value of at most 1 MiB; null if not said.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Payload,
    /// What makes it the same task when it is added again: one per queue.
    #[schema(value_type = Option<TaskKey>)]
    key: Option<String>,
    /// Not before so long from now.
    #[schema(value_type = Option<PauseSeconds>)]
    delay_seconds: Option<f64>,
    /// Not before this time.
    #[schema(format = DateTime, pattern = "^(19[7-9][0-9]|[2-9][0-9]{3})-")]
    run_at: Option<String>,
    /// Weight among the tasks that could run, -1000 to 1000: each step counts as having come 30 s earlier.
    #[schema(value_type = Option<Priority>)]
    priority: Option<i32>,
    /// It runs only while its worker holds this lock.
    #[schema(value_type = Option<LockName>)]
    lock: Option<String>,
    /// How often it is tried, 1 to 1000; 5 if not said.
    #[schema(value_type = Option<Attempts>)]
    max_attempts: Option<u32>,
    /// The pause after the first failed attempt, 1 if not said; each one after it is twice as long, up to an hour.
    #[schema(value_type = Option<SomeSeconds>)]
    backoff_seconds: Option<f64>,
    /// When the key of an earlier task may be used anew: `never`, when that task has `failed`, or when it is `finished`.
    #[serde(default)]
    reuse: Reuse,
}

/// One task, or many.
#[derive(ToSchema)]
#[serde(untagged)]
enum AddBody {
    /// One.
    One(NewTaskBody),
    /// Many: at most 1000.
    Many(Vec<NewTaskBody>),
}

/// By what it begins with, so that a complaint names the field that is wrong.
impl<'de> Deserialize<'de> for AddBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = AddBody;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a task or an array of tasks")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<AddBody, A::Error> {
                NewTaskBody::deserialize(MapAccessDeserializer::new(map)).map(AddBody::One)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<AddBody, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(AddBody::Many)
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

/// The task that was added, or that was there already.
#[derive(Serialize, ToSchema)]
struct AddedOne {
    /// Always true.
    success: bool,
    /// Whether a task with the same key and the same payload was there already: nothing was added.
    duplicate: bool,
    /// The task.
    task: TaskView,
}

/// What came of adding many.
#[derive(Serialize, ToSchema)]
struct AddedMany {
    /// Always true.
    success: bool,
    /// How many were added.
    added: usize,
    /// What came of each, in their order.
    tasks: Vec<AddedItem>,
}

/// What came of adding one of many.
#[derive(Serialize, ToSchema)]
struct AddedItem {
    /// The task that there is now, if it was not refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<TaskId>,
    /// Whether a task with the same key and the same payload was there already.
    duplicate: bool,
    /// If it was refused: why, `KEY_REUSED`. The others are added all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// The same in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// Either, for the description.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only described: each answer is one of them")]
enum AddReply {
    /// To one task.
    One(Box<AddedOne>),
    /// To an array.
    Many(AddedMany),
}

/// Add a task to a queue, or many at once.
///
/// A queue comes into being with its first task. With a key, a task that is there already with the same key and payload is not
/// added again: the answer is that task. An array is added as a whole or not at all, but for those whose key is taken.
#[utoipa::path(
    post, path = "/api/v1/queues/{queue}/tasks", tag = "tasks", operation_id = "addTasks",
    params(
        ("queue" = QueueName, Path, description = "The queue; a '/' is written %2F"),
        ("Idempotency-Key" = Option<IdempotencyKey>, Header, description = "The key, for one task"),
    ),
    request_body = AddBody,
    responses(
        (status = CREATED, description = "Added", body = AddReply, headers(("Location" = String, description = "The task, if it is one"))),
        (status = OK, description = "All were there already", body = AddReply),
        (status = UNPROCESSABLE_ENTITY, description = "KEY_REUSED: the key is taken by a task with another payload",
            body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn add(
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(queue): Path<String>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    Json(body): Json<AddBody>,
) -> Answer<Response> {
    let (queue, header) = (QueueName::new(queue)?, key_of(&headers)?);
    match (body, header) {
        (AddBody::One(new), header) => {
            let new = NewTaskBody { key: one_key(new.key, header)?, ..new };
            let EnqueueResult { id, duplicate } = new.prepared(&app, caller.who(), &queue)?.await?;
            let task = app.leasehold().tasks()?.get(id).await?;
            let reply = axum::Json(AddedOne { success: true, duplicate, task: TaskView::from(&task) });
            let place = [(header::LOCATION, place(uri.path(), id))];
            if duplicate {
                Ok((place, reply).into_response())
            } else {
                Ok((status::CREATED, place, reply).into_response())
            }
        }
        (AddBody::Many(_), Some(_)) => {
            Err(Problem::invalid("an Idempotency-Key is for one task; give each of many its own 'key'"))
        }
        (AddBody::Many(many), None) => add_many(&app, caller.who(), &queue, many).await,
    }
}

async fn add_many(app: &App, who: &Who, queue: &QueueName, many: Vec<NewTaskBody>) -> Answer<Response> {
    bounded("tasks", &many)?;
    let new = many.into_iter().enumerate().map(|(at, new)| {
        let prepared = new.prepared(app, who, queue).and_then(|new| Ok(new.into_new_task()?));
        prepared.map_err(|problem| problem.at(&format!("task {at}")))
    });
    let new = new.collect::<Answer<Vec<NewTask>>>()?;
    let answers = app.leasehold().enqueue_new(new).await?;
    let tasks: Vec<AddedItem> = answers
        .into_iter()
        .map(|answer| match answer {
            Ok(EnqueueResult { id, duplicate }) => {
                AddedItem { id: Some(id), duplicate, code: None, detail: None }
            }
            Err(error) => {
                let (code, detail) = (Some(error.code()), Some(error.to_string()));
                AddedItem { id: None, duplicate: false, code, detail }
            }
        })
        .collect();
    let added = tasks.iter().filter(|task| task.id.is_some() && !task.duplicate).count();
    let reply = axum::Json(AddedMany { success: true, added, tasks });
    if added > 0 { Ok((status::CREATED, reply).into_response()) } else { Ok(reply.into_response()) }
}

impl NewTaskBody {
    fn prepared(self, app: &App, who: &Who, queue: &QueueName) -> Answer<EnqueueBuilder> {
        must_not_claim_a_webhook(queue, &self.payload)?;
        let retries = retries(self.max_attempts, self.backoff_seconds, RetryPolicy::default())?;
        let payload = who.signed_start(queue, &self.payload).unwrap_or(self.payload);
        let mut task = app.leasehold().enqueue_to(queue, payload).retries(retries).reuse(self.reuse);
        if let Some(key) = self.key {
            task = task.key(TaskKey::new(key)?);
        }
        match (self.delay_seconds, self.run_at) {
            (Some(_), Some(_)) => {
                return Err(wrong("runAt", "there is delaySeconds already; give one of them"));
            }
            (Some(delay), None) => task = task.delay(duration("delaySeconds", delay)?),
            (None, Some(at)) => task = task.run_at(time("runAt", &at)?),
            (None, None) => {}
        }
        if let Some(weight) = self.priority {
            task = task.priority(weight);
        }
        if let Some(lock) = self.lock {
            who.must_reach_lock(&LockName::new(lock.as_str())?)?;
            task = task.lock(lock);
        }
        Ok(task)
    }
}

/// The key in the header, with or without quotes.
fn key_of(headers: &HeaderMap) -> Answer<Option<String>> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| Problem::invalid("the Idempotency-Key is not UTF-8"))?
        .trim();
    let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    Ok(Some(bare.to_owned()))
}

fn one_key(body: Option<String>, header: Option<String>) -> Answer<Option<String>> {
    match (body, header) {
        (Some(body), Some(header)) if body != header => Err(wrong(
            "key",
            format!("it is '{body}', and the Idempotency-Key is '{header}'; give one of them"),
        )),
        (body, header) => Ok(body.or(header)),
    }
}

/// Where a task is, under whatever path this server is mounted.
fn place(path: &str, id: TaskId) -> HeaderValue {
    let prefix = path.split_once("/api/v1/").map_or("", |(prefix, _)| prefix);
    let place = format!("{prefix}/api/v1/tasks/{id}");
    HeaderValue::from_str(&place).unwrap_or_else(|_| HeaderValue::from_static("/api/v1/tasks"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_quoted_or_not() {
        let key = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("idempotency-key", HeaderValue::from_str(text).unwrap());
            key_of(&headers).unwrap()
        };
        assert_eq!(key("\"a b\"").as_deref(), Some("a b"));
        assert_eq!(key("a\"b").as_deref(), Some("a\"b"));
        assert_eq!(one_key(Some("a".to_owned()), Some("a".to_owned())).unwrap().as_deref(), Some("a"));
        assert!(one_key(Some("a".to_owned()), Some("b".to_owned())).is_err());
    }

    #[test]
    fn a_task_is_found_where_the_server_is_mounted() {
        let id: TaskId = "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap();
        assert_eq!(place("/lh/api/v1/queues/api/tasks", id), format!("/lh/api/v1/tasks/{id}"));
    }
}
