//! Downloads: the payload and the result of a task, and the audit as NDJSON or CSV.

use axum::body::Body;
use axum::extract::Path;
use axum::http::{HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use leasehold::client::EventView;
use leasehold::store::{Cursor, EventRange, ListEvents};

use super::http::session::Viewer;
use super::pages::layout;
use super::view::{AuditView, View};
use crate::problem::{ApiResult, Problem};
use crate::server::App;
use crate::sync::InProgress;

const PAGE_SIZE: u32 = 500;
/// Maximum number of events in one export.
const MAX_EVENTS: usize = 1_000_000;
/// Columns of the CSV file.
const COLUMNS: &str = "at,kind,lock,holder,token,after_seconds,by,reason\r\n";

/// Downloads the payload or the result of a task.
pub(super) async fn task_file(
    app: App,
    viewer: Viewer,
    Path((id, file)): Path<(String, String)>,
) -> Response {
    let found: ApiResult<String> = async {
        let task = app.leasehold.tasks()?.get(id.parse()?).await?;
        viewer.identity.must_reach_queue(&task.queue)?;
        let content = match file.as_str() {
            "payload.json" => Some(task.payload),
            "result.json" => task.result,
            _ => None,
        };
        let missing = || Problem::new("UNKNOWN_PATH", format!("the task has no file {file}"));
        Ok(content.ok_or_else(missing)?.as_str().to_owned())
    }
    .await;
    match found {
        Ok(json) => {
            let name = file.trim_end_matches(".json");
            (download("application/json", &format!("{name}-{id}.json")), json).into_response()
        }
        Err(problem) => failed(&app, &viewer, &problem),
    }
}

/// Downloads the audit with one JSON object per line.
pub(super) async fn audit_ndjson(app: App, viewer: Viewer, uri: Uri) -> Response {
    let line = |event: &EventView| serde_json::to_string(event).map(|json| json + "\n").unwrap_or_default();
    audit(app, viewer, &uri, ("application/x-ndjson", "ndjson", ""), line)
}

/// Downloads the audit as CSV.
pub(super) async fn audit_csv(app: App, viewer: Viewer, uri: Uri) -> Response {
    audit(app, viewer, &uri, ("text/csv; charset=utf-8", "csv", COLUMNS), csv_line)
}

fn audit(
    app: App,
    viewer: Viewer,
    uri: &Uri,
    (kind, ending, head): (&'static str, &str, &'static str),
    line: fn(&EventView) -> String,
) -> Response {
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let view = viewer.identity.must_reach_all().and_then(|()| View::parse(&format!("/audit{query}")));
    let view = match view {
        Ok(View::Audit(view)) => view,
        Ok(_) => AuditView::default(),
        Err(problem) => return failed(&app, &viewer, &problem),
    };
    let next = Some(EventRange::Newest);
    let export =
        Export { app, view, next, sent: 0, head: Some(head), line, _in_progress: viewer.in_progress };
    // Pages of events are read while the client receives the earlier ones, so that a long history needs
    // no memory. If the store fails, the download ends without its last chunk: an incomplete file.
    let body = Body::from_stream(stream::try_unfold(export, Export::part));
    (download(kind, &format!("leasehold-audit.{ending}")), body).into_response()
}

struct Export {
    app: App,
    view: AuditView,
    next: Option<EventRange>,
    sent: usize,
    head: Option<&'static str>,
    line: fn(&EventView) -> String,
    /// Counts the request until the download has ended.
    _in_progress: Option<InProgress<String>>,
}

impl Export {
    async fn part(mut self) -> Result<Option<(String, Self)>, leasehold::Error> {
        let mut text = self.head.take().unwrap_or_default().to_owned();
        let Some(span) = self.next.take() else {
            return Ok((!text.is_empty()).then_some((text, self)));
        };
        let page =
            self.app.leasehold.locks().history(&ListEvents::default().span(span).limit(PAGE_SIZE)).await?;
        self.sent += page.items.len();
        for event in page.items.iter().filter(|event| self.view.matches(event)) {
            text.push_str(&(self.line)(event));
        }
        let is_over = page.items.is_empty() || self.sent >= MAX_EVENTS;
        self.next = page.next.filter(|_| !is_over).map(|Cursor(next)| EventRange::Before(Cursor(next)));
        // An empty chunk would end the response.
        if text.is_empty() && self.next.is_none() {
            return Ok(None);
        }
        Ok(Some((text, self)))
    }
}

fn csv_line(event: &EventView) -> String {
    let by = event.by.as_ref().map(ToString::to_string).unwrap_or_default();
    let reason = event.reason.as_ref().map(ToString::to_string).unwrap_or_default();
    let fields = [
        format!("{:#}", event.at),
        event.kind.to_string(),
        event.lock.to_string(),
        event.holder.to_string(),
        event.token.to_string(),
        event.after_seconds.to_string(),
        by,
        reason,
    ];
    fields.map(|field| csv_field(&field)).join(",") + "\r\n"
}

/// Quotes a field. Text that a spreadsheet would execute as a formula begins with an apostrophe.
fn csv_field(text: &str) -> String {
    let guarded =
        if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text.to_owned() };
    if guarded.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", guarded.replace('"', "\"\""));
    }
    guarded
}

fn download(kind: &'static str, name: &str) -> [(header::HeaderName, HeaderValue); 2] {
    let disposition = HeaderValue::from_str(&format!("attachment; filename=\"{name}\""));
    let disposition = disposition.unwrap_or(HeaderValue::from_static("attachment"));
    [(header::CONTENT_TYPE, HeaderValue::from_static(kind)), (header::CONTENT_DISPOSITION, disposition)]
}

fn failed(app: &App, viewer: &Viewer, problem: &Problem) -> Response {
    layout::problem_page(app, &viewer.browser, Some((&viewer.identity, &viewer.csrf)), problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_and_are_no_formulas() {
        assert_eq!(csv_field("plain"), "plain");
        assert_eq!(csv_field("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(csv_field("=1+1"), "'=1+1");
        assert_eq!(csv_field("@x,y"), "\"'@x,y\"");
    }
}
