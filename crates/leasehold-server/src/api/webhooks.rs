//! Webhooks: an event of another system starts a workflow exactly once.

use axum::extract::{FromRequestParts, Path, Request};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use leasehold::model::{Holder, Timestamp, TriggerId, WebhookEvent};
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use super::workflows::{StartReply, start_problem};
use crate::access::{Caller, Worker};
use crate::openapi::roles::routes;
use crate::openapi::schemas::IdempotencyKey;
use crate::problem::{ApiResult, Problem};
use crate::request::body::{must_be_json, read};
use crate::server::App;
use crate::webhooks::{
    Check, Event, EventIdentity, Outcome, RejectReason, Scheme, SignatureError, identify, key_of_body,
    key_of_delivery,
};
use crate::workflows::Trigger;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(None => receive))
}

/// Receives an event and starts a workflow.
///
/// The body must be signed according to the scheme of the trigger and becomes the input of the
/// workflow unchanged. A trigger without a scheme requires a token with the role worker and
/// `Content-Type: application/json` instead. For an event that the filter of the trigger rejects,
/// and for a test event of the sender such as `ping` of GitHub, the response has `"started":
/// false`, `"state": "filtered"` and a reason.
#[utoipa::path(
    post, path = "/api/webhooks/{triggerId}", tag = "webhooks", operation_id = "receiveWebhook", security((), ("token" = ["worker"])),
    params(
        ("triggerId" = TriggerId, Path, description = "Id of the trigger in leasehold.toml"),
        ("Idempotency-Key" = Option<IdempotencyKey>, Header, description = "Idempotency key of the event, if neither the key field of the trigger nor the sender's own id identifies it"),
        ("X-GitHub-Event" = Option<String>, Header, description = "Kind of a GitHub event"),
        ("X-GitHub-Delivery" = Option<String>, Header, description = "Id of a GitHub delivery; required by triggers with the scheme github"),
    ),
    request_body(content = serde_json::Value, description = "Body of the event", content_type = "application/json"),
    responses(
        (status = OK, description = "The execution was started now or earlier, or the event was skipped or filtered", body = StartReply),
        (status = ACCEPTED, description = "The execution waits for earlier executions", body = StartReply),
        (status = BAD_REQUEST, description = "INVALID: a header that the scheme requires is missing, or a value is not allowed", body = Problem, content_type = "application/problem+json"),
        (status = UNAUTHORIZED, description = "BAD_SIGNATURE: the signature is missing, invalid or too old", body = Problem, content_type = "application/problem+json"),
        (status = NOT_FOUND, description = "UNKNOWN_TRIGGER: the trigger does not exist", body = Problem, content_type = "application/problem+json"),
        (status = CONFLICT, description = "WORKFLOW_LOCKED: another execution holds the lock; the key was not consumed", body = Problem, content_type = "application/problem+json"),
        (status = UNSUPPORTED_MEDIA_TYPE, description = "NOT_JSON: the trigger has no scheme, and the content type is not application/json", body = Problem, content_type = "application/problem+json"),
        (status = UNPROCESSABLE_ENTITY, description = "IDEMPOTENCY_KEY_REUSED: the key belongs to an event with another body", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn receive(app: App, Path(id): Path<String>, request: Request) -> ApiResult<Response> {
    app.refuse_when_draining()?;
    let counts = &app.metrics.webhooks;
    let Some(trigger) = app.options.triggers.iter().find(|trigger| trigger.id == id) else {
        counts.reject_unknown();
        return Err(unknown(&id));
    };
    match deliver(&app, trigger, request).await {
        Ok((outcome, response)) => {
            counts.add(&trigger.id, outcome);
            Ok(response)
        }
        Err(DeliveryError::Rejected(reason, problem)) => {
            counts.reject(&trigger.id, reason);
            Err(problem)
        }
        Err(DeliveryError::Failed(outcome, problem)) => {
            counts.add(&trigger.id, outcome);
            Err(problem)
        }
    }
}

enum DeliveryError {
    /// The trigger does not accept the request.
    Rejected(RejectReason, Problem),
    /// The request is valid, but another execution holds the lock or the store failed.
    Failed(Outcome, Problem),
}

impl From<Problem> for DeliveryError {
    fn from(problem: Problem) -> Self {
        match problem.code() {
            "UNAUTHENTICATED" | "FORBIDDEN" => Self::Rejected(RejectReason::NoToken, problem),
            "NOT_JSON" => Self::Rejected(RejectReason::NotJson, problem),
            "INVALID" | "TOO_LARGE" | "TOO_SLOW" => Self::Rejected(RejectReason::Invalid, problem),
            "IDEMPOTENCY_KEY_REUSED" => Self::Rejected(RejectReason::KeyReused, problem),
            "WORKFLOW_LOCKED" | "LOCK_ACQUISITION_FAILED" => Self::Failed(Outcome::Locked, problem),
            _ => Self::Failed(Outcome::Failed, problem),
        }
    }
}

async fn deliver(
    app: &App,
    trigger: &Trigger,
    request: Request,
) -> Result<(Outcome, Response), DeliveryError> {
    let (mut parts, body) = request.into_parts();
    if trigger.scheme == Scheme::None {
        let caller = Caller::<Worker>::from_request_parts(&mut parts, app).await?;
        caller.must_reach_queue(&trigger.workflow.queue())?;
        must_be_json(&parts)?;
    }
    let (headers, body) = (&parts.headers, read(body, app).await?);
    verify(app, trigger, headers, &body).await?;
    let event = Event::new(trigger.scheme, headers, &body);
    let name = event.name().map_err(Problem::from)?;
    let workflow = app.workflow(&trigger.workflow)?;
    if let Some(reason) = trigger.filter.rejection(&event, name.as_ref()) {
        return Ok((Outcome::Filtered, StartReply::filtered(&workflow.name, reason)));
    }
    let identity = identify(&event, trigger.key.as_ref()).map_err(Problem::from)?;
    let mut start = app
        .leasehold
        .workflow(&workflow.name)
        .on_locked(trigger.on_locked)
        .reuse(workflow.reuse)
        .started_by(&Holder::new(format!("trigger {}", trigger.id)).map_err(Problem::from)?);
    if let Some(limit) = workflow.max_runtime {
        start = start.max_runtime(limit.as_duration());
    }
    if let Some(key) = key(app, trigger, &identity, &body).await? {
        // Each trigger has its own key space, because its sender chooses the keys.
        start = start.key(format!("{}:{key}", trigger.id));
    }
    let received = WebhookEvent {
        trigger: TriggerId::new(&trigger.id).map_err(Problem::from)?,
        event: name,
        delivery: identity.delivery,
    };
    for (name, value) in received.entries() {
        start = start.metadata(name, value);
    }
    match start.start_raw(&body).await {
        Ok(start) => Ok((Outcome::of(&start), StartReply::response(&workflow.name, &start, StatusCode::OK))),
        Err(error) => Err(start_problem(app, error).await.into()),
    }
}

async fn verify(app: &App, trigger: &Trigger, headers: &HeaderMap, body: &[u8]) -> Result<(), DeliveryError> {
    // The store's clock: the clock of this host may be wrong, and all servers should agree.
    let now = if trigger.scheme.has_time() {
        app.leasehold.now().await.map_err(Problem::from)?
    } else {
        Timestamp::from_micros(0)
    };
    let check = Check { scheme: trigger.scheme, secrets: &trigger.secrets, tolerance: trigger.tolerance };
    check.verify(headers, body, now).map_err(|error: SignatureError| {
        DeliveryError::Rejected(error.into(), Problem::new("BAD_SIGNATURE", error.to_string()))
    })
}

/// Returns the key of the event: that of its first delivery, if it was delivered before.
async fn key(
    app: &App,
    trigger: &Trigger,
    identity: &EventIdentity,
    body: &[u8],
) -> ApiResult<Option<String>> {
    let store = app.leasehold.store();
    let Some(docs) = store.documents() else { return Ok(identity.key.clone()) };
    let mut key = identity.key.clone();
    if let (Some(own), Some(delivery)) = (&key, &identity.delivery) {
        key = Some(key_of_delivery(docs, &trigger.id, delivery.as_str(), own).await?);
    }
    match trigger.replay_memory {
        Some(memory) if !identity.is_trusted => {
            let own = key.unwrap_or_else(|| Uuid::new_v4().to_string());
            Ok(Some(key_of_body(docs, &trigger.id, body, &own, memory).await?))
        }
        _ => Ok(key),
    }
}

fn unknown(id: &str) -> Problem {
    let problem = Problem::new("UNKNOWN_TRIGGER", format!("there is no trigger '{id}'"));
    problem.hint("triggers are defined in leasehold.toml: [triggers.ID]")
}
