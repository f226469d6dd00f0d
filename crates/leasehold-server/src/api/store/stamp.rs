//! What all calls of the store protocol have: a version, a clock, and until when they may begin.

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use leasehold::store::protocol::{
    CALL_HEADER, CLOCK_HEADER, CallId, PATH, Tick, UNTIL_HEADER, VERSION, VERSION_HEADER,
};

use crate::problem::Problem;
use crate::server::App;

/// What a request says about itself.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) call: Option<CallId>,
    until: Vec<Tick>,
}

impl Terms {
    fn of(headers: &HeaderMap) -> Self {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        Self {
            call: text(CALL_HEADER).and_then(CallId::read),
            until: text(UNTIL_HEADER).map(Tick::read).unwrap_or_default(),
        }
    }

    /// Refuses what comes late: its caller has given it up. A request that knows nothing of this server's clock may have
    /// been under way since before its start. The answer carries the clock, so the caller can ask again at once.
    pub(super) fn must_be_in_time(&self, app: &App) -> Result<(), Problem> {
        let now = app.store_desk().tick();
        let until = self.until.iter().find(|until| until.instance == now.instance);
        match until {
            Some(until) if now.micros < until.micros => Ok(()),
            Some(_) => Err(Problem::new("LATE", "this request came when its time was over")),
            None => Err(Problem::new("LATE", "this request does not know this server's clock")),
        }
    }
}

/// Refuses another version of the protocol. A handler takes it after its caller: strangers learn nothing of the protocol.
impl FromRequestParts<App> for Terms {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let version = parts.headers.get(VERSION_HEADER).map(|version| version.to_str().unwrap_or("?"));
        if version == Some(VERSION) { Ok(Self::of(&parts.headers)) } else { Err(unspoken(version)) }
    }
}

/// A layer: puts version and clock on what goes out.
pub(crate) async fn stamp(State(app): State<App>, request: Request, next: Next) -> Response {
    let is_of_protocol = request.uri().path().starts_with(PATH);
    let mut response = next.run(request).await;
    if !is_of_protocol {
        return response;
    }
    let headers = response.headers_mut();
    headers.insert(VERSION_HEADER, HeaderValue::from_static(VERSION));
    let tick = HeaderValue::from_str(&app.store_desk().tick().write()).expect("letters, digits and '='");
    headers.insert(CLOCK_HEADER, tick);
    response
}

fn unspoken(version: Option<&str>) -> Problem {
    let problem = match version {
        Some(other) => Problem::new(
            "PROTOCOL",
            format!(
                "this server speaks version {VERSION} of the store protocol, not '{}'",
                other.escape_debug()
            ),
        ),
        None => Problem::new("PROTOCOL", format!("this request has no header {VERSION_HEADER}")),
    };
    problem
        .hint("use the same version of leasehold on both sides; from other languages use the other endpoints")
}
