//! Enqueues tasks, one or many per request.

use std::fmt;

use axum::extract::{OriginalUri, Path};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use leasehold::client::TaskView;
use leasehold::model::{
    LockName, NewTask, Payload, Priority, QueueName, RetryPolicy, Reuse, Task, TaskId, TaskKey,
};
use leasehold::store::Clock;
use leasehold::{EnqueueBuilder, EnqueueResult};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::values::{bounded, duration, retry_policy, time};
use crate::access::{Caller, Identity, Worker};
use crate::openapi::roles::routes;
use crate::openapi::schemas::{Attempts, DelaySeconds, IdempotencyKey, PositiveSeconds};
use crate::problem::{ApiResult, Problem};
use crate::request::body::Json;
use crate::server::App;
use crate::status;
use crate::webhooks::{key_header, must_not_claim_a_webhook};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(enqueue))
}

/// New task.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewTaskBody {
    /// Payload: any JSON value of at most 1 MiB. Default: `null`.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Payload,
    /// Idempotency key. A queue has at most one task per key.
    #[schema(value_type = Option<TaskKey>)]
    key: Option<String>,
    /// Delay in seconds before the task may run.
    #[schema(value_type = Option<DelaySeconds>)]
    delay_seconds: Option<f64>,
    /// Earliest start time.
    #[schema(format = DateTime, pattern = "^(19[7-9][0-9]|[2-9][0-9]{3})-")]
    run_at: Option<String>,
    /// Priority, -1000 to 1000. Each step counts as an arrival 30 s earlier. Default: 0.
    #[schema(value_type = Option<Priority>)]
    priority: Option<i32>,
    /// Lock that the worker must hold while it runs the task.
    #[schema(value_type = Option<LockName>)]
    lock: Option<String>,
    /// Maximum number of attempts, 1 to 1000. Default: 5.
    #[schema(value_type = Option<Attempts>)]
    max_attempts: Option<u32>,
    /// Delay in seconds after the first failed attempt. It doubles with each further attempt, up to
    /// one hour. Default: 1.
    #[schema(value_type = Option<PositiveSeconds>)]
    backoff_seconds: Option<f64>,
    /// Maximum run time in seconds of one attempt. The worker ends an attempt that runs longer; the attempt
    /// has failed. Default: unlimited.
    #[schema(value_type = Option<PositiveSeconds>)]
    timeout_seconds: Option<f64>,
    /// When the key of an earlier task may be reused: `never`, after the task has `failed`, or
    /// after it has `finished`.
    #[serde(default)]
    reuse: Reuse,
}

/// One task, or an array of tasks.
#[derive(ToSchema)]
#[serde(untagged)]
enum EnqueueBody {
    /// One task.
    One(NewTaskBody),
    /// At most 1000 tasks.
    Many(Vec<NewTaskBody>),
}

/// Chooses the variant by the JSON type, so that errors name the invalid field.
impl<'de> Deserialize<'de> for EnqueueBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = EnqueueBody;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a task or an array of tasks")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<EnqueueBody, A::Error> {
                NewTaskBody::deserialize(MapAccessDeserializer::new(map)).map(EnqueueBody::One)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<EnqueueBody, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(EnqueueBody::Many)
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

/// Enqueued task, or the existing task with the same key.
#[derive(Serialize, ToSchema)]
struct EnqueueOneReply {
    /// Always true.
    success: bool,
    /// Whether a task with the same key and payload existed, so that no task was added.
    duplicate: bool,
    /// New or existing task.
    task: TaskView,
}

/// Result for an array of tasks.
#[derive(Serialize, ToSchema)]
struct EnqueueManyReply {
    /// Always true.
    success: bool,
    /// Number of added tasks.
    added: usize,
    /// Results in the order of the request.
    tasks: Vec<EnqueuedItem>,
}

/// Result for one task of an array.
#[derive(Serialize, ToSchema)]
struct EnqueuedItem {
    /// Id of the new or existing task; absent if the task was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<TaskId>,
    /// Whether a task with the same key and payload existed.
    duplicate: bool,
    /// Error code if the task was rejected: `KEY_REUSED`. The other tasks are added nevertheless.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// Error message if the task was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// Response to one task or to an array.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "used only for the OpenAPI document")]
enum EnqueueReply {
    /// Response to one task.
    One(Box<EnqueueOneReply>),
    /// Response to an array.
    Many(EnqueueManyReply),
}

/// Enqueues a task, or an array of tasks.
///
/// A queue is created with its first task. If a task with the same key and payload exists, no task
/// is added and the response contains the existing task. An array is added as a whole or not at
/// all, except for tasks whose key is used by another payload.
#[utoipa::path(
    post, path = "/api/v1/queues/{queue}/tasks", tag = "tasks", operation_id = "addTasks",
    params(
        ("queue" = QueueName, Path, description = "Name of the queue; encode '/' as %2F"),
        ("Idempotency-Key" = Option<IdempotencyKey>, Header, description = "Idempotency key of a single task"),
    ),
    request_body = EnqueueBody,
    responses(
        (status = CREATED, description = "At least one task was added", body = EnqueueReply, headers(("Location" = String, description = "Path of the task, for a single task"))),
        (status = OK, description = "All tasks existed already", body = EnqueueReply),
        (status = UNPROCESSABLE_ENTITY, description = "KEY_REUSED: the key belongs to a task with another payload",
            body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn enqueue(
    app: App,
    caller: Caller<Worker>,
    Path(queue): Path<String>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    Json(body): Json<EnqueueBody>,
) -> ApiResult<Response> {
    let (queue, header) = (QueueName::new(queue)?, key_header(&headers)?);
    match (body, header) {
        (EnqueueBody::One(new), header) => {
            let new = NewTaskBody { key: merge_keys(new.key, header)?, ..new };
            let new = new.builder(&app, &caller, &queue)?.into_new_task()?;
            let mut added = app.leasehold.enqueue_new(vec![new.clone()]).await?;
            let EnqueueResult { id, duplicate, .. } = added.pop().expect("one result for one task")?;
            let task = match app.leasehold.tasks()?.get(id).await {
                // The task is stored. After an error, a client without a key would add it again.
                Err(error) if !duplicate => {
                    tracing::warn!(%error, task = %id, "failed to read a task that was added");
                    Task::new(&new, Clock::system().now())
                }
                task => task?,
            };
            let reply = axum::Json(EnqueueOneReply { success: true, duplicate, task: TaskView::from(&task) });
            let location = [(header::LOCATION, location(uri.path(), id))];
            if duplicate {
                Ok((location, reply).into_response())
            } else {
                Ok((status::CREATED, location, reply).into_response())
            }
        }
        (EnqueueBody::Many(_), Some(_)) => Err(Problem::invalid(
            "the header Idempotency-Key is allowed for a single task only; set 'key' in each task of an array",
        )),
        (EnqueueBody::Many(many), None) => enqueue_many(&app, &caller, &queue, many).await,
    }
}

async fn enqueue_many(
    app: &App,
    identity: &Identity,
    queue: &QueueName,
    many: Vec<NewTaskBody>,
) -> ApiResult<Response> {
    bounded("tasks", &many)?;
    let new = many.into_iter().enumerate().map(|(at, new)| {
        let prepared = new.builder(app, identity, queue).and_then(|new| Ok(new.into_new_task()?));
        prepared.map_err(|problem| problem.at(&format!("task {at}")))
    });
    let new = new.collect::<ApiResult<Vec<NewTask>>>()?;
    let results = app.leasehold.enqueue_new(new).await?;
    let tasks: Vec<EnqueuedItem> = results
        .into_iter()
        .map(|result| match result {
            Ok(EnqueueResult { id, duplicate, .. }) => {
                EnqueuedItem { id: Some(id), duplicate, code: None, detail: None }
            }
            Err(error) => {
                let (code, detail) = (Some(error.code()), Some(error.to_string()));
                EnqueuedItem { id: None, duplicate: false, code, detail }
            }
        })
        .collect();
    let added = tasks.iter().filter(|task| task.id.is_some() && !task.duplicate).count();
    let reply = axum::Json(EnqueueManyReply { success: true, added, tasks });
    if added > 0 { Ok((status::CREATED, reply).into_response()) } else { Ok(reply.into_response()) }
}

impl NewTaskBody {
    fn builder(self, app: &App, identity: &Identity, queue: &QueueName) -> ApiResult<EnqueueBuilder> {
        must_not_claim_a_webhook(queue, &self.payload)?;
        let retries = retry_policy(self.max_attempts, self.backoff_seconds, RetryPolicy::default())?;
        let payload = identity.signed_start(queue, &self.payload).unwrap_or(self.payload);
        let mut task = app.leasehold.enqueue_to(queue, payload).retries(retries).reuse(self.reuse);
        if let Some(key) = self.key {
            task = task.key(TaskKey::new(key)?);
        }
        match (self.delay_seconds, self.run_at) {
            (Some(_), Some(_)) => {
                return Err(Problem::invalid("must not be combined with delaySeconds").at("runAt"));
            }
            (Some(delay), None) => task = task.delay(duration("delaySeconds", delay)?),
            (None, Some(at)) => task = task.run_at(time("runAt", &at)?),
            (None, None) => {}
        }
        if let Some(timeout) = self.timeout_seconds {
            task = task.timeout(duration("timeoutSeconds", timeout)?);
        }
        if let Some(priority) = self.priority {
            task = task.priority(priority);
        }
        if let Some(lock) = self.lock {
            identity.must_reach_lock(&LockName::new(lock.as_str())?)?;
            task = task.lock(lock);
        }
        Ok(task)
    }
}

fn merge_keys(body: Option<String>, header: Option<String>) -> ApiResult<Option<String>> {
    match (body, header) {
        (Some(body), Some(header)) if body != header => Err(Problem::invalid(format!(
            "key: '{body}' differs from the header Idempotency-Key '{header}'; send only one of them"
        ))),
        (body, header) => Ok(body.or(header)),
    }
}

/// Returns the path of a task, including the prefix under which this server is mounted.
fn location(path: &str, id: TaskId) -> HeaderValue {
    let prefix = path.split_once("/api/v1/").map_or("", |(prefix, _)| prefix);
    let path = format!("{prefix}/api/v1/tasks/{id}");
    HeaderValue::from_str(&path).unwrap_or_else(|_| HeaderValue::from_static("/api/v1/tasks"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_the_header_must_be_the_one_of_the_body() {
        assert_eq!(merge_keys(Some("a".to_owned()), Some("a".to_owned())).unwrap().as_deref(), Some("a"));
        assert!(merge_keys(Some("a".to_owned()), Some("b".to_owned())).is_err());
    }

    #[test]
    fn the_location_includes_the_mount_path() {
        let id: TaskId = "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap();
        assert_eq!(location("/lh/api/v1/queues/api/tasks", id), format!("/lh/api/v1/tasks/{id}"));
    }
}
