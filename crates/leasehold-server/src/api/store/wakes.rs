//! Waiting for wake-ups: one request for all waiters and workers of a client.

use std::time::Duration;

use axum::response::Response;
use leasehold::store::protocol::{LONGEST_POLL_SECONDS, Listen, MOST_LISTENED};

use super::routes::answer;
use crate::access::Who;
use crate::body::parse;
use crate::problem::{Answer, Problem};
use crate::server::App;

pub(super) async fn call(app: &App, who: &Who, body: &[u8]) -> Answer<Response> {
    let (list,): (Listen,) = parse(body)?;
    if list.leases.len().max(list.queues.len()).max(list.notices.len()) > MOST_LISTENED {
        return Err(Problem::invalid(format!("one can listen for {MOST_LISTENED} at most")));
    }
    list.queues.iter().try_for_each(|queue| who.must_reach_queue(queue))?;
    app.refuse_when_draining()?;
    let longest = app.limits().wait.min(Duration::from_secs(LONGEST_POLL_SECONDS));
    let session = app.store_desk().sessions.of(list.client);
    let store = app.leasehold().store();
    let woken = app.unless_draining(async { Ok(session.poll(&store, list, longest).await) }).await?;
    answer(Ok(woken))
}
