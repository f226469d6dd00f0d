//! The description of the API, generated from the handlers and what they take and give.

use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr, Response, ResponseBuilder, SecurityRequirement};

use crate::problem::Problem;
use crate::server::App;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "leasehold",
        description = "Work that runs in one place at a time: locks with fencing tokens, tasks with leases, workflows that start once per event.",
        license(name = "MIT OR Apache-2.0"),
    ),
    components(schemas(Problem)),
    tags(
        (name = "locks", description = "A lease on a name"),
        (name = "tasks", description = "A lease on a piece of work; queues, workers and schedules"),
        (name = "terraform", description = "State and lock for the HTTP backend of Terraform and OpenTofu. The client's methods LOCK and UNLOCK on /tf/{name} cannot be described here: they do what POST and DELETE on /tf/{name}/lock do"),
        (name = "metrics", description = "What is measured"),
        (name = "workflows", description = "What starts once per event and runs one at a time"),
        (name = "webhooks", description = "Events of others that start workflows"),
        (name = "store", description = "How leasehold itself speaks to a server; use the others from elsewhere"),
        (name = "health", description = "Whether the server is alive and ready"),
    ),
)]
struct Head;

/// What the description begins with.
pub(crate) fn head() -> OpenApi {
    <Head as utoipa::OpenApi>::openapi()
}

/// What holds for all paths.
pub(crate) fn finish(mut description: OpenApi) -> OpenApi {
    let components = description.components.get_or_insert_default();
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    components.add_security_scheme("token", bearer);
    for item in description.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            let responses = &mut operation.responses.responses;
            // Those that everybody may use say so.
            if operation.security.is_none() {
                responses.entry("401".to_owned()).or_insert_with(|| no_token().into());
            }
            for (status, response) in responses {
                name_it(status, response);
            }
        }
    }
    description.security = Some(vec![SecurityRequirement::new::<_, [&str; 0], &str>("token", [])]);
    description
}

fn no_token() -> Response {
    let problem = Content::new(Some(Ref::from_schema_name("Problem")));
    ResponseBuilder::new()
        .description("No token, or one that is not known, has ended or was revoked")
        .content("application/problem+json", problem)
        .build()
}

/// Generators of clients want every answer to be described, if only by what its status is called.
fn name_it(status: &str, response: &mut RefOr<Response>) {
    if let RefOr::T(response) = response
        && response.description.is_empty()
    {
        let known = StatusCode::from_bytes(status.as_bytes()).ok();
        let reason = known.and_then(|status| status.canonical_reason());
        reason.unwrap_or("Answer").clone_into(&mut response.description);
    }
}

/// The description as text.
pub(crate) fn text() -> String {
    let (_, description) = crate::router::described().split_for_parts();
    finish(description).to_pretty_json().expect("a description that was built can be written")
}

/// The path that gives it.
pub(crate) fn route(description: &OpenApi) -> MethodRouter<App> {
    let text = Bytes::from(description.to_json().expect("a description that was built can be written"));
    get(async move || {
        let json = HeaderValue::from_static("application/json");
        // All answers share the same bytes.
        ([(header::CONTENT_TYPE, json)], text.clone()).into_response()
    })
}
