//! Stream of events of tasks.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream;
use leasehold::client::FeedNotice;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Interval;

use super::sse;
use crate::access::{Identity, StreamAccess};
use crate::problem::ApiResult;
use crate::server::App;
use crate::streams::task_stream::{Batch, TaskFilter};

/// Streams the new events of these tasks, which the caller may follow.
pub(super) async fn follow(app: App, access: StreamAccess, filter: TaskFilter) -> ApiResult<Response> {
    let batches = app.task_stream.subscribe(filter.clone()).await?;
    let (ready, heartbeat) = (VecDeque::from([sse::first()]), sse::heartbeat());
    let listener = Listener { app, access, filter, batches, ready, heartbeat };
    Ok(sse::response(stream::unfold(listener, async |mut listener| {
        let event = listener.next().await?;
        Some((event, listener))
    })))
}

/// Stream of one client.
struct Listener {
    app: App,
    access: StreamAccess,
    filter: TaskFilter,
    batches: Receiver<Arc<Batch>>,
    ready: VecDeque<Event>,
    heartbeat: Interval,
}

impl Listener {
    /// Returns the next message, or `None` when the server stops or the token is no longer valid.
    async fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() {
            let app = self.app.clone();
            app.unless_draining(self.receive()).await.ok()??;
        }
        self.ready.pop_front()
    }

    async fn receive(&mut self) -> Option<()> {
        let filter = &self.filter;
        let may_follow = |identity: &Identity| identity.must_reach_queues(filter.queue());
        if self.access.is_lost(&self.app.authenticator, may_follow).await {
            return None;
        }
        tokio::select! {
            biased;
            received = self.batches.recv() => match received {
                Ok(batch) => self.ready.extend(batch.iter().map(|json| Event::default().data(json))),
                Err(RecvError::Lagged(_)) => {
                    let notice = serde_json::to_string(&FeedNotice::missed()).unwrap_or_default();
                    self.ready.push_back(Event::default().data(notice));
                }
                Err(RecvError::Closed) => return None,
            },
            () = self.access.wait() => {}
            _ = self.heartbeat.tick() => self.ready.push_back(Event::default().comment("heartbeat")),
        }
        Some(())
    }
}
