//! What happens, as it happens: server-sent events.

use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response, Sse};
use futures_util::stream;
use leasehold::model::LockName;
use leasehold::store::Cursor;
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Interval, MissedTickBehavior};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;

use crate::access::{Caller, Reader};
use crate::body::Query;
use crate::feed::{Batch, Joined};
use crate::problem::{Answer, Problem};
use crate::roles::routes;
use crate::server::App;

/// Something is sent at least so often, so that neither side nor what is between them takes the other for dead.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// After a look at the store that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// A client whose connection broke comes back after this.
const COME_BACK: Duration = Duration::from_secs(1);

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(events))
}

/// Which events.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventsQuery {
    /// Of this lock; of all if not said.
    lock: Option<LockName>,
    /// Of locks whose names begin with this.
    #[serde(default)]
    prefix: String,
    /// Like the header `Last-Event-ID`, for clients that cannot set it.
    last_event_id: Option<String>,
}

/// Follow what happens to locks, as server-sent events.
///
/// The data of each is one line of history as JSON. Its id is a place in the store's history: a client that comes back
/// with it as `Last-Event-ID`, to this or another server of the same store, misses nothing that is still in the history.
/// Without one it begins now. A comment comes at least every 15 s. The stream ends when the server stops.
#[utoipa::path(
    get, path = "/api/v1/events", tag = "locks", operation_id = "followEvents",
    params(EventsQuery, ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that came")),
    responses(
        (status = OK, description = "A stream that does not end by itself", body = String, content_type = "text/event-stream"),
    ),
)]
async fn events(
    State(app): State<App>,
    _: Caller<Reader>,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    app.refuse_when_draining()?;
    let last = headers.get("last-event-id").map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned());
    let last = last.or(query.last_event_id).filter(|id| !id.is_empty());
    let from = last.as_deref().map(Place::parse).transpose()?;
    let joined = app.feed().join().await?;
    let wanted = Wanted { lock: query.lock, prefix: query.prefix };
    let listener = Listener::new(app, joined, from, wanted);
    let stream = stream::unfold(listener, async |mut listener| {
        let event = listener.next().await?;
        Some((Ok::<_, Infallible>(event), listener))
    });
    // Proxies that collect an answer before they pass it on would never pass on this one.
    let unbuffered = [(HeaderName::from_static("x-accel-buffering"), "no")];
    Ok((unbuffered, Sse::new(stream)).into_response())
}

/// A place in the history: so many events behind a cursor of the store. The store has cursors only between pages.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    after: Cursor,
    events: usize,
}

impl Place {
    fn between_pages(after: Cursor) -> Self {
        Self { after, events: 0 }
    }

    fn parse(id: &str) -> Answer<Self> {
        if id.contains(char::is_control) {
            return Err(Problem::invalid("the last event id is none that this server gave"));
        }
        let (after, events) = match id.rsplit_once('~') {
            Some((after, events)) if events.parse::<usize>().is_ok() => (after, events.parse().unwrap_or(0)),
            _ => (id, 0),
        };
        Ok(Self { after: Cursor(after.to_owned()), events })
    }

    fn id(&self) -> String {
        format!("{}~{}", self.after.0, self.events)
    }
}

/// What one client wants to hear.
struct Wanted {
    lock: Option<LockName>,
    prefix: String,
}

impl Wanted {
    fn has(&self, lock: &LockName) -> bool {
        self.lock.as_ref().is_none_or(|wanted| wanted == lock) && lock.as_str().starts_with(&self.prefix)
    }
}

/// One client. It hears what is read for all; what it has missed it reads for itself.
struct Listener {
    app: App,
    joined: Joined,
    wanted: Wanted,
    place: Place,
    /// What it has read for itself may come again from the others: the marks of that.
    own: Option<HashSet<u64>>,
    behind: bool,
    ready: VecDeque<Event>,
    heartbeat: Interval,
}

impl Listener {
    fn new(app: App, joined: Joined, from: Option<Place>, wanted: Wanted) -> Self {
        let behind = from.is_some();
        let place = from.unwrap_or_else(|| Place::between_pages(joined.head.clone()));
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeat.reset();
        let hello = Event::default().retry(COME_BACK).id(place.id());
        Self { app, joined, wanted, place, own: None, behind, ready: VecDeque::from([hello]), heartbeat }
    }

    /// None when the server stops.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let app = self.app.clone();
            let goes_on = app.unless_draining(async { Ok(self.hear().await) }).await;
            goes_on.ok()??;
        }
    }

    /// Makes something ready, perhaps.
    async fn hear(&mut self) -> Option<()> {
        if self.behind {
            self.catch_up().await;
            return Some(());
        }
        tokio::select! {
            biased;
            heard = self.joined.batches.recv() => match heard {
                Ok(batch) => self.take(&batch, 0),
                Err(RecvError::Lagged(_)) => self.behind = true,
                Err(RecvError::Closed) => return None,
            },
            // With the place, so that it need not be searched from far back if nothing it wants happens for long.
            _ = self.heartbeat.tick() => {
                self.ready.push_back(Event::default().id(self.place.id()).comment("still here"));
            }
        }
        Some(())
    }

    async fn catch_up(&mut self) {
        let read = self.app.feed().read(self.place.after.clone()).await;
        let Ok(batch) = read else {
            tokio::time::sleep(PAUSE).await;
            self.ready.push_back(Event::default().comment("the store does not answer"));
            return;
        };
        let marks = batch.lines.iter().map(|line| line.mark);
        let mut own = self.own.take().unwrap_or_default();
        own.extend(marks);
        self.behind = !batch.lines.is_empty();
        let skip = self.place.events;
        self.take(&batch, skip);
        self.own = Some(own);
    }

    /// Makes ready what is wanted of a batch.
    fn take(&mut self, batch: &Batch, skip: usize) {
        for (number, line) in batch.lines.iter().enumerate().skip(skip) {
            if self.own.as_ref().is_some_and(|own| own.contains(&line.mark)) {
                continue;
            }
            // All see the same order: behind one that is new to it, everything is.
            self.own = None;
            let place = if number + 1 == batch.lines.len() {
                Place::between_pages(batch.next.clone())
            } else {
                Place { after: batch.after.clone(), events: number + 1 }
            };
            if self.wanted.has(&line.lock) {
                self.ready.push_back(Event::default().id(place.id()).data(&line.json));
            }
        }
        self.place = Place::between_pages(batch.next.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_its_way_through_a_client() {
        for (cursor, events) in [("12", 0), ("7/3/a~4", 2), ("1-2-3", 17), ("ü/~", 0)] {
            let place = Place { after: Cursor(cursor.to_owned()), events };
            assert_eq!(Place::parse(&place.id()).unwrap(), place);
        }
        assert_eq!(Place::parse("12").unwrap(), Place::between_pages(Cursor("12".to_owned())));
        assert!(Place::parse("1\n2").is_err());
    }
}
