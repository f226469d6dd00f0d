//! Stepping in: update, retry, cancel.

use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::Response;
use leasehold::model::{Change, Payload, Priority, Reason, TaskId};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::problems::{Missing, OtherState};
use super::replies::{TaskReply, changed};
use super::values::{present, retries, task_id, time};
use crate::access::{Caller, Operator, Who};
use crate::body::{Json, MaybeJson};
use crate::described::{Attempts, SomeSeconds, VersionTag};
use crate::problem::{Answer, Problem};
use crate::roles::routes;
use crate::server::App;
use crate::webhooks::must_keep_its_webhook;

/// Refuses a caller whose scopes do not name the queue of this task.
async fn must_reach(app: &App, who: &Who, id: TaskId) -> Answer<()> {
    if who.is_scoped() {
        who.must_reach_queue(&app.leasehold().tasks()?.get(id).await?.queue)?;
    }
    Ok(())
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(update)).routes(routes!(retry)).routes(routes!(cancel))
}

/// What is to change; the rest stays.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UpdateBody {
    /// What it is about from now on; not while it runs or when it is over.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Payload>,
    /// Its weight, -1000 to 1000; not when it is over.
    #[schema(value_type = Option<Priority>)]
    priority: Option<i32>,
    /// Not before this time; not while it runs or when it is over.
    #[schema(format = DateTime, pattern = "^(19[7-9][0-9]|[2-9][0-9]{3})-")]
    run_at: Option<String>,
    /// How often it is tried, 1 to 1000; not when it is over.
    #[schema(value_type = Option<Attempts>)]
    max_attempts: Option<u32>,
    /// The pause after the first failed attempt; not when it is over.
    #[schema(value_type = Option<SomeSeconds>)]
    backoff_seconds: Option<f64>,
    /// Put away, or taken out again; only when it is over.
    archived: Option<bool>,
}

impl UpdateBody {
    const fn is_empty(&self) -> bool {
        self.payload.is_none()
            && self.priority.is_none()
            && self.run_at.is_none()
            && self.max_attempts.is_none()
            && self.backoff_seconds.is_none()
            && self.archived.is_none()
    }
}

/// Change a task if it is still at the version that you saw.
#[utoipa::path(
    patch, path = "/api/v1/tasks/{id}", tag = "tasks", operation_id = "updateTask",
    params(
        ("id" = TaskId, Path, description = "The task"),
        ("If-Match" = VersionTag, Header, description = "The version that you saw, in quotes: the ETag of the task"),
    ),
    request_body = UpdateBody,
    responses(
        (status = OK, body = TaskReply, headers(("ETag" = String, description = "Its version now, in quotes"))),
        (status = PRECONDITION_FAILED, description = "VERSION_CONFLICT: somebody has changed it since; currentVersion says which it is",
            body = Problem, content_type = "application/problem+json"),
        OtherState, Missing,
    ),
)]
async fn update(
    State(app): State<App>,
    caller: Caller<Operator>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(body): Json<UpdateBody>,
) -> Answer<Response> {
    let (id, tasks, expected) = (task_id(&id)?, app.leasehold().tasks()?, expected(&headers)?);
    if body.is_empty() {
        return Err(Problem::invalid("nothing is to change"));
    }
    must_reach(&app, caller.who(), id).await?;
    if let Some(store) = app.leasehold().store().tasks() {
        must_keep_its_webhook(store, id, body.payload.as_ref()).await?;
    }
    let retries = if body.max_attempts.is_some() || body.backoff_seconds.is_some() {
        // The rest stays. If it changes in between, so does the version.
        let before = tasks.get(id).await?.retries;
        Some(retries(body.max_attempts, body.backoff_seconds, before)?)
    } else {
        None
    };
    let change = Change {
        expected,
        by: Some(caller.holder()?),
        payload: body.payload,
        priority: body.priority.map(Priority::new).transpose()?,
        run_at: body.run_at.map(|at| time("runAt", &at)).transpose()?,
        retries,
        archived: body.archived,
    };
    Ok(changed(&tasks.update(id, change).await?))
}

/// The version in `If-Match`.
fn expected(headers: &HeaderMap) -> Answer<u64> {
    let hint = "read the task, and send its ETag as it is, such as If-Match: \"3\"";
    let Some(tag) = headers.get(header::IF_MATCH) else {
        return Err(Problem::invalid("there is no If-Match with the version that you saw").hint(hint));
    };
    let text = tag.to_str().unwrap_or("").trim();
    let version = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    version.and_then(|version| version.parse().ok()).ok_or_else(|| {
        Problem::invalid(format!("If-Match is {text}, which is no version in quotes")).hint(hint)
    })
}

/// Try a failed or stopped task again, with all its attempts; run a scheduled one now.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/retry", tag = "tasks", operation_id = "retryTask",
    params(("id" = TaskId, Path, description = "The task")),
    responses((status = OK, body = TaskReply), OtherState, Missing),
)]
async fn retry(State(app): State<App>, caller: Caller<Operator>, Path(id): Path<String>) -> Answer<Response> {
    let id = task_id(&id)?;
    must_reach(&app, caller.who(), id).await?;
    let task = app.leasehold().tasks()?.retry(id, caller.holder()?).await?;
    Ok(changed(&task))
}

/// Why.
#[derive(Deserialize, ToSchema, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct WhyBody {
    /// Why, for those who look later.
    pub(super) reason: Option<Reason>,
}

/// Stop a task: at once if it waits; if it runs, its worker learns it with its next heartbeat.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/cancel", tag = "tasks", operation_id = "cancelTask",
    params(("id" = TaskId, Path, description = "The task")),
    request_body = Option<WhyBody>,
    responses((status = OK, body = TaskReply), OtherState, Missing),
)]
async fn cancel(
    State(app): State<App>,
    caller: Caller<Operator>,
    Path(id): Path<String>,
    MaybeJson(why): MaybeJson<WhyBody>,
) -> Answer<Response> {
    let id = task_id(&id)?;
    must_reach(&app, caller.who(), id).await?;
    let task = app.leasehold().tasks()?.cancel(id, caller.holder()?, why.reason).await?;
    Ok(changed(&task))
}
