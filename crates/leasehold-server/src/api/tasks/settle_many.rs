//! Ending many attempts in one request.

use axum::extract::State;
use leasehold::model::{AttemptResult, Payload, Settle, Settled, TaskId, Token};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::beat::must_own;
use super::settle::{failed, released};
use super::values::{bounded, wrong};
use crate::access::{Caller, Worker};
use crate::body::Json;
use crate::described::PauseSeconds;
use crate::problem::Answer;
use crate::roles::routes;
use crate::server::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(settle))
}

/// Attempts that ended.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SettleBody {
    /// At most 1000, none of them twice.
    #[schema(max_items = 1000)]
    tasks: Vec<EndedBody>,
}

/// An attempt that ended.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EndedBody {
    /// The task.
    id: TaskId,
    /// The token of the lease.
    token: Token,
    /// How it ended.
    outcome: Ending,
    /// With `complete`: what came of it, any JSON value of at most 1 MiB.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Payload>,
    /// With `fail`: why.
    error: Option<String>,
    /// With `fail` and `release`: try again after so long.
    #[schema(value_type = Option<PauseSeconds>)]
    retry_in_seconds: Option<f64>,
    /// With `fail`: trying again is no use.
    #[serde(default)]
    r#final: bool,
}

/// How an attempt ended: as the requests of the same names.
#[derive(Deserialize, ToSchema, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Ending {
    /// It is done.
    Complete,
    /// It failed.
    Fail,
    /// It is given back.
    Release,
    /// It was stopped because somebody wanted it.
    Abort,
}

/// What became of each.
#[derive(Serialize, ToSchema)]
struct SettledReply {
    /// Always true.
    success: bool,
    /// In the order of the request.
    tasks: Vec<SettledItem>,
}

/// What became of one.
#[derive(Serialize, ToSchema)]
struct SettledItem {
    /// The task.
    id: TaskId,
    /// Whether it is settled. If not, the lease was lost, and nothing was changed.
    settled: bool,
    /// Where the task stands now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "succeeded")]
    state: Option<&'static str>,
}

/// End many attempts in one request. Those whose lease is lost are left out, and say so.
#[utoipa::path(
    post, path = "/api/v1/tasks/settle", tag = "tasks", operation_id = "settleTasks",
    request_body = SettleBody,
    responses((status = OK, description = "Also if some leases are lost", body = SettledReply)),
)]
async fn settle(
    State(app): State<App>,
    caller: Caller<Worker>,
    Json(body): Json<SettleBody>,
) -> Answer<axum::Json<SettledReply>> {
    bounded("tasks", &body.tasks)?;
    let ended = body.tasks.into_iter().map(EndedBody::settle).collect::<Answer<Vec<_>>>()?;
    must_own(&app, &caller, ended.iter().map(|end| (end.id, end.token))).await?;
    let settled = app.leasehold().tasks()?.settle(&ended).await?;
    let item = |(ended, settled): (&Settle, &Settled)| match settled {
        Settled::Now(state) => SettledItem { id: ended.id, settled: true, state: Some(state.word()) },
        Settled::Lost | Settled::Busy => SettledItem { id: ended.id, settled: false, state: None },
    };
    Ok(axum::Json(SettledReply { success: true, tasks: ended.iter().zip(&settled).map(item).collect() }))
}

impl EndedBody {
    fn settle(self) -> Answer<Settle> {
        let Self { id, token, outcome, result, error, retry_in_seconds, r#final } = self;
        let stray = match outcome {
            Ending::Complete => retry_in_seconds.is_some() || error.is_some() || r#final,
            Ending::Fail => result.is_some(),
            Ending::Release => result.is_some() || error.is_some() || r#final,
            Ending::Abort => retry_in_seconds.is_some() || result.is_some() || error.is_some() || r#final,
        };
        if stray {
            return Err(wrong("outcome", format!("of task {id}: some fields do not go with it")));
        }
        let verdict = match outcome {
            Ending::Complete => AttemptResult::Done(result),
            Ending::Fail => failed(error.as_deref(), retry_in_seconds, r#final)?,
            Ending::Release => released(retry_in_seconds)?,
            Ending::Abort => AttemptResult::Abort(None),
        };
        Ok(Settle { id, token, verdict })
    }
}
