//! Headers of the store protocol (its version, the server's clock, the deadline of a call), the results of
//! calls, and the schemas of the protocol in the `OpenAPI` document. The arguments of most calls are defined
//! by the library and not described.

use axum::Json;
use axum::extract::{FromRequestParts, Request};
use axum::http::HeaderValue;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use leasehold::store::protocol::{
    CALL_HEADER, CLOCK_HEADER, CallId, DocCall, LockCall, MAX_LISTENED, PATH, TaskCall, Tick, UNTIL_HEADER,
    VERSION, VERSION_HEADER,
};
use serde::Serialize;
use serde_json::json;
use utoipa::openapi::schema::{ArrayBuilder, KnownFormat, ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{Number, PartialSchema, ToSchema};

use crate::problem::{ApiResult, Problem};
use crate::server::App;

/// Identity and deadline of a call, from the headers of its request.
#[derive(Debug, Clone)]
pub(super) struct RequestDeadline {
    pub(super) call: Option<CallId>,
    /// Deadlines by the clocks of the servers that the client knows.
    deadlines: Vec<Tick>,
}

impl RequestDeadline {
    /// Rejects a call after its deadline, because its client has given it up. A request without a
    /// deadline by this server's clock may have been sent before the server started. The response
    /// carries the clock, so the client can retry at once.
    pub(super) fn must_be_in_time(&self, app: &App) -> Result<(), Problem> {
        let now = app.protocol_state.tick();
        let deadline = self.deadlines.iter().find(|deadline| deadline.instance == now.instance);
        match deadline {
            Some(deadline) if now.micros < deadline.micros => Ok(()),
            Some(_) => Err(Problem::new("LATE", "the request arrived after its deadline")),
            None => Err(Problem::new("LATE", "the request has no deadline by this server's clock")),
        }
    }
}

/// Rejects other versions of the protocol. Handlers extract this after the caller, so that
/// unauthenticated clients learn nothing about the protocol.
impl FromRequestParts<App> for RequestDeadline {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let text = |name| parts.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let version = parts.headers.get(VERSION_HEADER).map(|version| version.to_str().unwrap_or("?"));
        if version != Some(VERSION) {
            return Err(unsupported_version(version));
        }
        Ok(Self {
            call: text(CALL_HEADER).and_then(CallId::read),
            deadlines: text(UNTIL_HEADER).map(Tick::read).unwrap_or_default(),
        })
    }
}

/// Middleware that adds the version and the clock to responses of the store protocol.
pub(crate) fn add_protocol_headers(
    app: &App,
    request: Request,
    next: Next,
) -> impl Future<Output = Response> {
    let is_of_protocol = request.uri().path().starts_with(PATH);
    next.run(request).map(move |mut response| {
        if is_of_protocol {
            let headers = response.headers_mut();
            headers.insert(VERSION_HEADER, HeaderValue::from_static(VERSION));
            let tick = app.protocol_state.tick().write();
            headers.insert(CLOCK_HEADER, HeaderValue::from_str(&tick).expect("a tick is plain ASCII"));
        }
        response
    })
}

fn unsupported_version(version: Option<&str>) -> Problem {
    let detail = match version.map(str::escape_debug) {
        Some(other) => format!("this server supports version {VERSION} of the store protocol, not '{other}'"),
        None => format!("the request has no header {VERSION_HEADER}"),
    };
    Problem::new("PROTOCOL", detail)
        .hint("use the same version of leasehold for the client and the server; other clients use the other endpoints")
}

pub(super) fn json_result<T: Serialize>(result: leasehold::Result<T>) -> ApiResult<Response> {
    Ok(Json(result?).into_response())
}

macro_rules! enum_schemas {
    ($($(#[$doc:meta])* $name:ident = $values:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let values = $values.iter().map(|value| json!(value));
                RefOr::T(ObjectBuilder::new().schema_type(Type::String).enum_values(Some(values)).into())
            }
        }

        impl ToSchema for $name {}
    )*};
}

enum_schemas! {
    /// Version of the store protocol.
    ProtocolVersion = [VERSION];
    /// Name of a lock call.
    LockCallName = LockCall::WORDS;
    /// Name of a task call.
    TaskCallName = TaskCall::WORDS;
    /// Name of a document call.
    DocCallName = DocCall::WORDS;
}

/// Subscriptions of a client: the only argument of the call.
pub(crate) struct ListenArguments;

impl PartialSchema for ListenArguments {
    fn schema() -> RefOr<Schema> {
        let uuid = || {
            let format = SchemaFormat::KnownFormat(KnownFormat::Uuid);
            ObjectBuilder::new().schema_type(Type::String).format(Some(format))
        };
        let list = |items: RefOr<Schema>| ArrayBuilder::new().items(items).max_items(Some(MAX_LISTENED));
        let number = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(Number::UInt(0)));
        let number = number.maximum(Some(Number::UInt(usize::MAX)));
        let queue = utoipa::openapi::Ref::from_schema_name("QueueName");
        let listen = ObjectBuilder::new()
            .property("client", uuid())
            .property("number", number)
            .property("leases", list(uuid().into()))
            .property("queues", list(queue.into()))
            .property("notices", list(uuid().into()));
        let listen =
            ["client", "number", "leases", "queues"].into_iter().fold(listen, ObjectBuilder::required);
        RefOr::T(ArrayBuilder::new().items(listen).min_items(Some(1)).max_items(Some(1)).into())
    }
}

impl ToSchema for ListenArguments {}
