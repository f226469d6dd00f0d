//! The `OpenAPI` document, generated from the handlers and their request and response types.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};
use leasehold::model::{
    CronExpression, ExecutionId, Holder, LeaseId, LockName, Metadata, MisfirePolicy, Priority, QueueName,
    Reason, Reuse, ScheduleName, Slots, TaskId, TaskKey, TaskState, TimeZoneName, Token, TriggerId, Ttl,
    WorkerId, WorkflowName,
};
use utoipa::Number;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{Components, Object};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr, Required, Response, ResponseBuilder, Schema};

use crate::api::store::{DocCallName, ListenArguments, LockCallName, ProtocolVersion, TaskCallName};
use crate::api::tasks::MAX_TASKS_PER_REQUEST;
use crate::openapi::roles;
use crate::openapi::schemas::{
    self, Attempts, Confirmation, Count, DelaySeconds, DurationText, FinishedState, IdempotencyKey,
    LongCount, PageCursor, PageSize, PositiveSeconds, StateName, TtlSeconds, VersionTag, WaitSeconds,
    WorkerText,
};
use crate::problem::Problem;
use crate::server::{App, Limits};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "leasehold",
        description = "Distributed locks with fencing tokens, task queues with leases, and workflows that start once per event.",
        license(name = "MIT OR Apache-2.0"),
    ),
    components(schemas(
        Problem, CronExpression, ExecutionId, Holder, LeaseId, LockName, Metadata, MisfirePolicy, Priority, QueueName, Reason, Reuse,
        ScheduleName, Slots, TaskId, TaskKey, TaskState, Token, TriggerId, WorkerId, WorkflowName, TimeZoneName,
        Attempts, Count, DurationText, FinishedState, IdempotencyKey, LongCount, PageCursor, PageSize,
        DelaySeconds, PositiveSeconds, StateName, TtlSeconds, VersionTag, WaitSeconds, WorkerText, Confirmation,
        DocCallName, ListenArguments, LockCallName, ProtocolVersion, TaskCallName,
    )),
    tags(
        (name = "locks", description = "Locks: leases on names"),
        (name = "tasks", description = "Tasks, queues, workers and schedules"),
        (name = "terraform", description = "State and lock for the HTTP backend of Terraform and OpenTofu. The methods LOCK and UNLOCK on /tf/{name} cannot be described in OpenAPI; they do the same as POST and DELETE on /tf/{name}/lock"),
        (name = "metrics", description = "Metrics of the server and its store"),
        (name = "workflows", description = "Workflows and their executions: started once per event, run one at a time"),
        (name = "webhooks", description = "Events of other systems that start workflows"),
        (name = "store", description = "Internal protocol between the leasehold library and a server; other clients use the other endpoints"),
        (name = "health", description = "Liveness and readiness probes"),
    ),
)]
struct Document;

/// Returns the document without paths: title, tags and schemas.
pub(crate) fn base_document() -> OpenApi {
    <Document as utoipa::OpenApi>::openapi()
}

/// Parts of the document that depend on the server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) wait: Duration,
    pub(crate) ttl: Ttl,
    /// Whether requests without a token are admitted.
    pub(crate) is_open: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { wait: Limits::default().wait, ttl: Ttl::MIN, is_open: false }
    }
}

/// Adds what applies to all paths: security, bounds and common problems.
pub(crate) fn finish(mut description: OpenApi, bounds: Bounds) -> OpenApi {
    let components = description.components.get_or_insert_default();
    let bearer = SecurityScheme::Http(
        HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "API token of leasehold. The role of an operation is the minimum role of the token",
            ))
            .build(),
    );
    components.add_security_scheme(roles::SCHEME, bearer);
    let seconds = |duration: Duration| Some(Number::Float(duration.as_secs_f64()));
    if let Some(ttl) = object(components, schemas::TTL) {
        ttl.minimum = seconds(bounds.ttl.as_duration());
    }
    if let Some(wait) = object(components, schemas::WAIT) {
        wait.maximum = seconds(bounds.wait);
    }
    for (name, excluded) in schemas::exclusions() {
        if let Some(body) = object(components, name) {
            body.extensions.get_or_insert_default().insert("not".to_owned(), excluded);
        }
    }
    limit_task_lists(components);
    for item in description.paths.paths.values_mut() {
        for operation in roles::operations(item).into_iter().flatten() {
            forbid_null_bodies(operation);
            add_problems(operation);
            if bounds.is_open {
                roles::allow_without_token(operation);
            }
            for (status, response) in &mut operation.responses.responses {
                fill_description(status, response);
            }
        }
    }
    description
}

/// Returns a schema of the components if it is neither a reference nor a choice.
fn object<'a>(components: &'a mut Components, name: &str) -> Option<&'a mut Object> {
    match components.schemas.get_mut(name) {
        Some(RefOr::T(Schema::Object(object))) => Some(object),
        _ => None,
    }
}

/// Sets the maximum length of task lists in `EnqueueBody`, because the macro cannot set it on a choice
/// between one task and many.
fn limit_task_lists(components: &mut Components) {
    let Some(RefOr::T(Schema::OneOf(choice))) = components.schemas.get_mut("EnqueueBody") else { return };
    for item in &mut choice.items {
        if let RefOr::T(Schema::Array(many)) = item {
            many.max_items = Some(MAX_TASKS_PER_REQUEST);
        }
    }
}

/// Makes optional bodies non-nullable: the client may omit such a body but must not send `null`.
fn forbid_null_bodies(operation: &mut Operation) {
    let Some(RefOr::T(body)) = &mut operation.request_body else { return };
    for content in body.content.values_mut() {
        if let RefOr::T(content) = content
            && let Some(RefOr::T(Schema::OneOf(choice))) = &mut content.schema
            && let Some(index) = choice.items.iter().position(|item| matches!(item, RefOr::Ref(_)))
        {
            content.schema = Some(choice.items.swap_remove(index));
            body.required = Some(Required::False);
        }
    }
}

/// Adds the problems that follow from what an operation accepts and which callers may use it.
/// Responses that the operation describes itself stay unchanged.
fn add_problems(operation: &mut Operation) {
    let tag = operation.tags.as_ref().and_then(|tags| tags.first()).map_or("", String::as_str).to_owned();
    let id = operation.operation_id.clone().unwrap_or_default();
    let is_public = roles::is_public(operation);
    let has_body = operation.request_body.is_some();
    let has_values = has_body || operation.parameters.as_ref().is_some_and(|values| !values.is_empty());
    let needs_store = id != "healthz";
    // A webhook sender chooses the content type itself, and Terraform unlocks with or without a body.
    let wants_json = has_body && !["receiveWebhook", "unlockTerraformState"].contains(&id.as_str());
    let is_optional = ["tasks", "workflows", "webhooks", "terraform", "store"].contains(&tag.as_str());
    let problems = [
        (has_values, StatusCode::BAD_REQUEST, "INVALID: a value is not allowed"),
        (
            !is_public,
            StatusCode::UNAUTHORIZED,
            "UNAUTHENTICATED: the token is missing, not known, expired or revoked",
        ),
        (
            !is_public,
            StatusCode::FORBIDDEN,
            "FORBIDDEN: the role or the scopes of the token do not suffice, or the lease belongs to another token",
        ),
        (has_body, StatusCode::REQUEST_TIMEOUT, "TOO_SLOW: the body did not arrive in time"),
        (has_body, StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE: the body is larger than the server accepts"),
        (
            wants_json,
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "NOT_JSON: the content type is not application/json",
        ),
        (
            !is_public,
            StatusCode::TOO_MANY_REQUESTS,
            "RATE_LIMITED: the token has reached its maximum number of concurrent requests",
        ),
        (
            needs_store,
            StatusCode::INTERNAL_SERVER_ERROR,
            "INTERNAL: an error of the server, its settings or its store",
        ),
        (
            is_optional,
            StatusCode::NOT_IMPLEMENTED,
            "NOT_SUPPORTED: the store of this server does not support the operation",
        ),
        (needs_store, StatusCode::SERVICE_UNAVAILABLE, "STORE_UNAVAILABLE or DRAINING: retry later"),
    ];
    for (_, status, text) in problems.into_iter().filter(|(occurs, ..)| *occurs) {
        let responses = &mut operation.responses.responses;
        responses.entry(status.as_str().to_owned()).or_insert_with(|| problem(text).into());
    }
}

fn problem(description: &str) -> Response {
    let problem = Content::new(Some(Ref::from_schema_name("Problem")));
    ResponseBuilder::new().description(description).content("application/problem+json", problem).build()
}

/// Fills an empty description of a response with the reason phrase of its status, because client
/// generators require a description.
fn fill_description(status: &str, response: &mut RefOr<Response>) {
    if let RefOr::T(response) = response
        && response.description.is_empty()
    {
        let known = StatusCode::from_bytes(status.as_bytes()).ok();
        let reason = known.and_then(|status| status.canonical_reason());
        reason.unwrap_or("Response").clone_into(&mut response.description);
    }
}

pub(crate) fn route(description: &OpenApi) -> MethodRouter<App> {
    let text = Bytes::from(description.to_json().expect("the document is serializable"));
    get(async move || {
        let json = HeaderValue::from_static("application/json");
        // All responses share the same bytes.
        ([(header::CONTENT_TYPE, json)], text.clone()).into_response()
    })
}
