//! Webhooks: an event of somebody else starts a workflow, once.

use axum::extract::{FromRequest, FromRequestParts, Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use leasehold::model::Timestamp;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::started::{self, Started};
use crate::access::{Caller, Worker};
use crate::body::Raw;
use crate::problem::{Answer, Problem};
use crate::server::App;
use crate::webhooks::{Check, Deliveries, Event, Scheme, delivery_id, key_of};
use crate::workflows::Trigger;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(receive))
}

/// Start a workflow by an event. The body is signed as the trigger's scheme has it, and goes to the workflow byte for byte.
/// A trigger without a scheme wants a token of a worker instead.
#[utoipa::path(
    post, path = "/api/webhooks/{triggerId}", tag = "webhooks", operation_id = "receiveWebhook", security((), ("token" = [])),
    params(
        ("triggerId" = String, Path, description = "The trigger, as leasehold.toml calls it"),
        ("Idempotency-Key" = Option<String>, Header, description = "What tells this event from others; else a place in the body that the trigger names, else the sender's own id of the event"),
    ),
    request_body(content = String, description = "Whatever the sender sends", content_type = "application/json"),
    responses(
        (status = OK, description = "It was started; or it was before, or is skipped", body = Started),
        (status = ACCEPTED, description = "It waits for its turn", body = Started),
        (status = UNAUTHORIZED, description = "The signature is not good", body = Problem, content_type = "application/problem+json"),
        (status = NOT_FOUND, description = "There is no such trigger", body = Problem, content_type = "application/problem+json"),
        (status = CONFLICT, description = "Another execution is in the way: the key is as free as before", body = Problem, content_type = "application/problem+json"),
        (status = UNPROCESSABLE_ENTITY, description = "The key has started something with another body", body = Problem, content_type = "application/problem+json"),
        (status = SERVICE_UNAVAILABLE, description = "The server is stopping, or its store cannot be reached", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn receive(State(app): State<App>, Path(id): Path<String>, request: Request) -> Answer<Response> {
    app.refuse_when_draining()?;
    let trigger = app.trigger(&id).ok_or_else(|| unknown(&id))?;
    let (mut parts, body) = request.into_parts();
    if trigger.scheme == Scheme::None {
        Caller::<Worker>::from_request_parts(&mut parts, &app).await?;
    }
    let headers = std::mem::take(&mut parts.headers);
    let Raw(body) = Raw::from_request(Request::from_parts(parts, body), &app).await?;
    verify(&app, trigger, &headers, &body).await?;
    let event = Event { scheme: trigger.scheme, headers: &headers, body: &body };
    let key = key(&app, trigger, event).await?;
    let workflow = app.workflow(&trigger.workflow)?;
    let mut start =
        app.leasehold().workflow(&workflow.name).on_locked(trigger.on_locked).reuse(workflow.reuse);
    if let Some(longest) = workflow.max_runtime {
        start = start.max_runtime(longest.as_duration());
    }
    if let Some(key) = &key {
        // Each trigger has keys of its own: its sender chooses them.
        start = start.key(format!("{}:{key}", trigger.id));
    }
    match start.start_raw(&body).await {
        Ok(start) => Ok(Started::answer(&workflow.name, &start, StatusCode::OK)),
        Err(error) => Err(started::refused(&app, error).await),
    }
}

async fn verify(app: &App, trigger: &Trigger, headers: &HeaderMap, body: &[u8]) -> Answer<()> {
    // The store's clock: that of this machine may be off, and all servers should agree.
    let now =
        if trigger.scheme.has_time() { app.leasehold().now().await? } else { Timestamp::from_micros(0) };
    let check = Check { scheme: trigger.scheme, secrets: &trigger.secrets, tolerance: trigger.tolerance };
    check.verify(headers, body, now).map_err(|refused| {
        tracing::warn!(trigger = trigger.id, %refused, "a webhook was not believed");
        Problem::new("BAD_SIGNATURE", refused.to_string())
    })
}

/// The key of the event: that of its first delivery, if it was delivered before.
async fn key(app: &App, trigger: &Trigger, event: Event<'_>) -> Answer<Option<String>> {
    let Some(key) = key_of(event, trigger.key.as_ref())? else { return Ok(None) };
    let store = app.leasehold().store();
    match (delivery_id(event)?, store.docs()) {
        (Some(delivery), Some(docs)) => {
            Ok(Some(Deliveries::of(docs).key(&trigger.id, &delivery, &key).await?))
        }
        _ => Ok(Some(key)),
    }
}

fn unknown(id: &str) -> Problem {
    let problem = Problem::new("UNKNOWN_TRIGGER", format!("there is no trigger '{id}'"));
    problem.hint("triggers stand in leasehold.toml: [triggers.ID]")
}
