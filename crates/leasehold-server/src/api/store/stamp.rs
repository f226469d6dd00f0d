//! What all calls of the store protocol have: a version, a clock, and until when they may begin.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
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

/// A layer: looks at the version of what comes in, and puts version and clock on what goes out.
pub(crate) async fn stamp(State(app): State<App>, mut request: Request, next: Next) -> Response {
    if !request.uri().path().starts_with(PATH) {
        return next.run(request).await;
    }
    let spoken =
        request.headers().get(VERSION_HEADER).map(|version| version.to_str().unwrap_or("?").to_owned());
    let mut response = match spoken.as_deref() {
        Some(VERSION) => {
            let terms = Terms::of(request.headers());
            request.extensions_mut().insert(terms);
            next.run(request).await
        }
        other => unspoken(other).into_response(),
    };
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
