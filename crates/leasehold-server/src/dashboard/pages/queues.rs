//! Queues with their numbers of tasks.

use leasehold::model::{QueueStatus, TaskState, Timestamp, WorkflowName};
use maud::{Markup, html};

use crate::access::{Identity, Role};
use crate::dashboard::http::browser::Browser;
use crate::dashboard::pages::parts;
use crate::dashboard::view::{self, TaskStateKey, TasksView, View};

const COLUMNS: [&str; 11] = [
    "Queue",
    "State",
    "Pending",
    "Running",
    "Scheduled",
    "Blocked",
    "Failed",
    "Succeeded",
    "Aborted",
    "Since",
    "",
];
const STATES: [TaskState; 7] = [
    TaskState::Pending,
    TaskState::Running,
    TaskState::Scheduled,
    TaskState::Blocked,
    TaskState::Failed,
    TaskState::Succeeded,
    TaskState::Aborted,
];

/// Returns the page.
pub(in crate::dashboard) fn page(
    browser: &Browser,
    identity: &Identity,
    now: Timestamp,
    queues: &[QueueStatus],
) -> Markup {
    let may_pause = identity.must_be(Role::Operator).is_ok();
    let rows = html! { @for queue in queues { (row(browser, may_pause, now, queue)) } };
    html! {
        div.head { h1 { "Queues" } }
        @if queues.is_empty() {
            (parts::empty("No queues", &html! { "Add a task with " code { "leasehold tasks add QUEUE PAYLOAD" } "." }))
        } @else {
            (parts::table("Queues and their numbers of tasks", &COLUMNS, &rows))
        }
    }
}

fn row(browser: &Browser, may_pause: bool, now: Timestamp, queue: &QueueStatus) -> Markup {
    let tasks = |state: Option<TaskState>| {
        let view = TasksView {
            queue: Some(queue.queue.clone()),
            state: state.map(TaskStateKey::of),
            ..TasksView::default()
        };
        browser.link(&View::Tasks(view).address())
    };
    let action = |action: &str| browser.link(&format!("{}/{action}", view::path("queues", &queue.queue)));
    html! {
        tr id=(format!("queue-{}", view::encoded(queue.queue.as_str()))) {
            th scope="row" {
                a.mono href=(tasks(None)) { (parts::name(&queue.queue)) }
                @if WorkflowName::of_queue(&queue.queue).is_some() { " " span.quiet { "workflow" } }
            }
            td { @if queue.paused.is_some() { (parts::badge("warn", "paused")) } @else { (parts::badge("good", "active")) } }
            @for state in STATES {
                @let count = queue.counts.get(state);
                td.number {
                    @if count > 0 { a href=(tasks(Some(state))) { (parts::grouped(count)) } } @else { span.quiet { "0" } }
                }
            }
            td.wide {
                @if let Some(pause) = &queue.paused {
                    (parts::ago(now, pause.at)) " by " (parts::name(&pause.by))
                    @if let Some(reason) = &pause.reason { ": " (parts::name(reason)) }
                }
            }
            td {
                @if may_pause {
                    @if queue.paused.is_some() { a.button href=(action("resume")) data-dialog { "Resume…" } }
                    @else { a.button href=(action("pause")) data-dialog { "Pause…" } }
                }
            }
        }
    }
}
