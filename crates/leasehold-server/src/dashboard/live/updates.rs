//! Live updates: a stream of server-sent events tells an open page that its data have changed. All tabs
//! with the same page share one poller, which ends with the last of them.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::Query;
use axum::http::{HeaderName, Uri};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response, Sse};
use futures_util::stream;
use serde::Deserialize;
use tokio::time::{Interval, MissedTickBehavior};

use super::pollers::{Followed, Seen};
use crate::access::{Identity, StreamAccess};
use crate::dashboard::data::refresh_interval;
use crate::dashboard::http::session::Viewer;
use crate::dashboard::load;
use crate::dashboard::pages::layout;
use crate::dashboard::view::View;
use crate::problem::{ApiResult, Problem};
use crate::server::App;

/// Maximum time between two messages, so that no proxy closes the connection as idle.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// Reconnection delay that browsers are told to use.
const RECONNECT_DELAY: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
pub(in crate::dashboard) struct LiveQuery {
    view: String,
}

/// Streams a message whenever the page has changed.
pub(in crate::dashboard) async fn live(app: App, viewer: Viewer, uri: Uri) -> Response {
    let opened: ApiResult<_> = async {
        app.refuse_when_draining()?;
        let query = Query::<LiveQuery>::try_from_uri(&uri);
        let view = View::parse(&query.map_err(|error| Problem::invalid(error.body_text()))?.view)?;
        // The first read also checks whether the viewer may see the page.
        let first = match load::load(&app, &viewer.identity, &view).await {
            Ok(data) => data.fingerprint(),
            Err(problem) if problem.status().is_server_error() => 0,
            Err(problem) => return Err(problem),
        };
        let start = || drop(tokio::spawn(poll(app.clone(), view.clone())));
        let token = viewer.identity.has_token.then_some(viewer.identity.name.as_str());
        let followed = app.dashboard.pollers.subscribe(token, &view, start)?;
        Ok((view, first, followed))
    }
    .await;
    let (view, first, followed) = match opened {
        Ok(opened) => opened,
        Err(problem) => {
            return layout::problem_page(
                &app,
                &viewer.browser,
                Some((&viewer.identity, &viewer.csrf)),
                &problem,
            );
        }
    };
    let mut heartbeat = tokio::time::interval(HEARTBEAT_INTERVAL);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    heartbeat.reset();
    let listener = Listener {
        access: StreamAccess::new(&app.authenticator, viewer.browser.token, viewer.in_progress),
        app,
        view,
        followed,
        sent: Seen { version: first, is_available: true },
        is_first: true,
        heartbeat,
        is_over: false,
    };
    let stream = stream::unfold(listener, async |mut listener| {
        let event = listener.next().await?;
        Some((Ok::<_, Infallible>(event), listener))
    });
    let unbuffered = [(HeaderName::from_static("x-accel-buffering"), "no")];
    (unbuffered, Sse::new(stream)).into_response()
}

/// Stream of one tab.
struct Listener {
    app: App,
    access: StreamAccess,
    view: View,
    followed: Followed<View>,
    sent: Seen,
    is_first: bool,
    heartbeat: Interval,
    is_over: bool,
}

impl Listener {
    /// Returns the next message, or `None` when the server stops.
    async fn next(&mut self) -> Option<Event> {
        if self.is_over {
            return None;
        }
        if std::mem::take(&mut self.is_first) {
            // Tells the page to load itself once: it may be older than the stream.
            return Some(Event::default().retry(RECONNECT_DELAY).event("changed").data("0"));
        }
        let app = self.app.clone();
        app.unless_draining(self.wait()).await.ok()?
    }

    async fn wait(&mut self) -> Option<Event> {
        loop {
            let view = &self.view;
            let may_view = |identity: &Identity| load::may_view(identity, view);
            if self.access.is_lost(&self.app.authenticator, may_view).await {
                self.is_over = true;
                return Some(Event::default().event("signed-out").data("1"));
            }
            tokio::select! {
                biased;
                () = self.access.wait() => {}
                changed = self.followed.seen.changed() => {
                    changed.ok()?;
                    if let Some(event) = self.message() {
                        return Some(event);
                    }
                }
                _ = self.heartbeat.tick() => return Some(Event::default().comment("heartbeat")),
            }
        }
    }

    fn message(&mut self) -> Option<Event> {
        let (seen, sent) = (*self.followed.seen.borrow_and_update(), self.sent);
        self.sent = seen;
        if seen.is_available != sent.is_available {
            let state = if seen.is_available { "ok" } else { "unavailable" };
            // A page that was not updated for a while has to be loaded again.
            self.is_first = seen.is_available;
            return Some(Event::default().event("store").data(state));
        }
        let changed = seen.version != sent.version;
        changed.then(|| Event::default().event("changed").data(seen.version.to_string()))
    }
}

/// Reads a page at every interval until no tab shows it or the server stops.
async fn poll(app: App, view: View) {
    let every = refresh_interval(&app.leasehold.capabilities());
    let pollers = &app.dashboard.pollers;
    let mut version = 0;
    loop {
        let seen = match load::shared(&app, &view).await {
            Ok(data) => {
                version = data.fingerprint();
                Seen { version, is_available: true }
            }
            // For example a task that was deleted: the page shows the problem.
            Err(problem) if !problem.status().is_server_error() => {
                version = version.wrapping_add(1);
                Seen { version, is_available: true }
            }
            Err(_) => Seen { version, is_available: false },
        };
        if !pollers.publish(&view, seen) {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = app.draining.cancelled() => break,
        }
    }
    pollers.remove(&view);
}
