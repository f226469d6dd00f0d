//! Webhooks: an event of another system starts a workflow, once.

use axum::extract::{FromRequest, FromRequestParts, Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use leasehold::model::{Holder, Timestamp, TriggerId, WebhookEvent};
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use super::started::{self, Started};
use crate::access::{Caller, Worker};
use crate::body::{Raw, must_be_json};
use crate::described::IdempotencyKey;
use crate::problem::{Answer, Problem};
use crate::roles::routes;
use crate::server::App;
use crate::webhooks::{Check, Deliveries, Event, Identity, Outcome, Refusal, Refused, Scheme, identify};
use crate::workflows::Trigger;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(None => receive))
}

/// Start a workflow by an event.
///
/// The body is signed as the trigger's scheme has it, and goes to the workflow byte for byte. A trigger without a scheme wants a
/// token of a worker and `Content-Type: application/json` instead. An event that the filter of the trigger does not let pass,
/// and a sender's test event such as GitHub's `ping`, is answered with `"started": false`, `"state": "filtered"` and a reason.
#[utoipa::path(
    post, path = "/api/webhooks/{triggerId}", tag = "webhooks", operation_id = "receiveWebhook", security((), ("token" = ["worker"])),
    params(
        ("triggerId" = TriggerId, Path, description = "The trigger, as leasehold.toml calls it"),
        ("Idempotency-Key" = Option<IdempotencyKey>, Header, description = "What tells this event from others, if neither the place in the body that the trigger names nor the sender's own id does"),
        ("X-GitHub-Event" = Option<String>, Header, description = "The kind of an event of GitHub"),
        ("X-GitHub-Delivery" = Option<String>, Header, description = "The id of an event of GitHub, which a trigger with this scheme wants"),
    ),
    request_body(content = serde_json::Value, description = "Whatever the sender sends", content_type = "application/json"),
    responses(
        (status = OK, description = "It was started; or it was before, or it is skipped or filtered", body = Started),
        (status = ACCEPTED, description = "It waits for its turn", body = Started),
        (status = BAD_REQUEST, description = "A header that the scheme needs is missing, or a value cannot be used", body = Problem, content_type = "application/problem+json"),
        (status = UNAUTHORIZED, description = "The signature is missing, invalid or too old", body = Problem, content_type = "application/problem+json"),
        (status = NOT_FOUND, description = "There is no such trigger", body = Problem, content_type = "application/problem+json"),
        (status = CONFLICT, description = "Another execution is in the way: the key is as free as before", body = Problem, content_type = "application/problem+json"),
        (status = UNSUPPORTED_MEDIA_TYPE, description = "The trigger has no scheme, and the body is not sent as application/json", body = Problem, content_type = "application/problem+json"),
        (status = UNPROCESSABLE_ENTITY, description = "The key has started something with another body", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn receive(State(app): State<App>, Path(id): Path<String>, request: Request) -> Answer<Response> {
    app.refuse_when_draining()?;
    let counts = &app.meters().webhooks;
    let Some(trigger) = app.trigger(&id) else {
        counts.refuse_unknown();
        return Err(unknown(&id));
    };
    match deliver(&app, trigger, request).await {
        Ok((outcome, response)) => {
            counts.add(&trigger.id, outcome);
            Ok(response)
        }
        Err(NotTaken::Refused(refusal, problem)) => {
            counts.refuse(&trigger.id, refusal);
            Err(problem)
        }
        Err(NotTaken::Failed(outcome, problem)) => {
            counts.add(&trigger.id, outcome);
            Err(problem)
        }
    }
}

/// A delivery that came to nothing.
enum NotTaken {
    /// The request is not one that the trigger takes.
    Refused(Refusal, Problem),
    /// It is, but another execution or the store is in the way.
    Failed(Outcome, Problem),
}

impl From<Problem> for NotTaken {
    fn from(problem: Problem) -> Self {
        match problem.code() {
            "UNAUTHENTICATED" | "FORBIDDEN" => Self::Refused(Refusal::NoToken, problem),
            "NOT_JSON" => Self::Refused(Refusal::NotJson, problem),
            "INVALID" | "TOO_LARGE" | "TOO_SLOW" => Self::Refused(Refusal::Invalid, problem),
            "IDEMPOTENCY_KEY_REUSED" => Self::Refused(Refusal::KeyReused, problem),
            "WORKFLOW_LOCKED" | "LOCK_ACQUISITION_FAILED" => Self::Failed(Outcome::Locked, problem),
            _ => Self::Failed(Outcome::Failed, problem),
        }
    }
}

async fn deliver(app: &App, trigger: &Trigger, request: Request) -> Result<(Outcome, Response), NotTaken> {
    let (mut parts, body) = request.into_parts();
    if trigger.scheme == Scheme::None {
        let caller = Caller::<Worker>::from_request_parts(&mut parts, app).await?;
        caller.who().must_reach_queue(&trigger.workflow.queue())?;
        must_be_json(&parts)?;
    }
    let headers = std::mem::take(&mut parts.headers);
    let Raw(body) = Raw::from_request(Request::from_parts(parts, body), app).await?;
    verify(app, trigger, &headers, &body).await?;
    let event = Event::new(trigger.scheme, &headers, &body);
    let name = event.name().map_err(Problem::from)?;
    let workflow = app.workflow(&trigger.workflow)?;
    if let Some(reason) = trigger.filter.rejection(&event, name.as_ref()) {
        return Ok((Outcome::Filtered, Started::filtered(&workflow.name, reason)));
    }
    let identity = identify(&event, trigger.key.as_ref()).map_err(Problem::from)?;
    let mut start = app
        .leasehold()
        .workflow(&workflow.name)
        .on_locked(trigger.on_locked)
        .reuse(workflow.reuse)
        .started_by(&Holder::new(format!("trigger {}", trigger.id)).map_err(Problem::from)?);
    if let Some(longest) = workflow.max_runtime {
        start = start.max_runtime(longest.as_duration());
    }
    if let Some(key) = key(app, trigger, &identity, &body).await? {
        // Each trigger has keys of its own: its sender chooses them.
        start = start.key(format!("{}:{key}", trigger.id));
    }
    let received = WebhookEvent {
        trigger: TriggerId::new(&trigger.id).map_err(Problem::from)?,
        event: name,
        delivery: identity.delivery,
    };
    for (fact, value) in received.facts() {
        start = start.fact(fact, value);
    }
    match start.start_raw(&body).await {
        Ok(start) => Ok((Outcome::of(&start), Started::answer(&workflow.name, &start, StatusCode::OK))),
        Err(error) => Err(started::refused(app, error).await.into()),
    }
}

async fn verify(app: &App, trigger: &Trigger, headers: &HeaderMap, body: &[u8]) -> Result<(), NotTaken> {
    // The store's clock: that of this machine may be off, and all servers should agree.
    let now = if trigger.scheme.has_time() {
        app.leasehold().now().await.map_err(Problem::from)?
    } else {
        Timestamp::from_micros(0)
    };
    let check = Check { scheme: trigger.scheme, secrets: &trigger.secrets, tolerance: trigger.tolerance };
    check.verify(headers, body, now).map_err(|refused: Refused| {
        NotTaken::Refused(refused.into(), Problem::new("BAD_SIGNATURE", refused.to_string()))
    })
}

/// Returns the key of the event: that of its first delivery, if it was delivered before.
async fn key(app: &App, trigger: &Trigger, identity: &Identity, body: &[u8]) -> Answer<Option<String>> {
    let store = app.leasehold().store();
    let Some(docs) = store.docs() else { return Ok(identity.key.clone()) };
    let deliveries = Deliveries::of(docs);
    let mut key = identity.key.clone();
    if let (Some(own), Some(delivery)) = (&key, &identity.delivery) {
        key = Some(deliveries.key(&trigger.id, delivery.as_str(), own).await?);
    }
    match trigger.replay_memory {
        Some(memory) if !identity.is_trusted => {
            let own = key.unwrap_or_else(|| Uuid::new_v4().to_string());
            Ok(Some(deliveries.key_of_body(&trigger.id, body, &own, memory).await?))
        }
        _ => Ok(key),
    }
}

fn unknown(id: &str) -> Problem {
    let problem = Problem::new("UNKNOWN_TRIGGER", format!("there is no trigger '{id}'"));
    problem.hint("triggers stand in leasehold.toml: [triggers.ID]")
}
