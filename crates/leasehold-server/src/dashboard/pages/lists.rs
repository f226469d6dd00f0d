//! Queues, schedules, workers, the audit, and the health of the store.

use leasehold::client::{EventView, WorkerView};
use leasehold::model::{QueueStatus, Schedule, TaskState, Timestamp, WorkerStatus, WorkflowName};
use maud::{Markup, html};

use super::locks::events_table;
use crate::access::{Identity, Role};
use crate::dashboard::data::HealthContent;
use crate::dashboard::http::browser::Browser;
use crate::dashboard::pages::parts;
use crate::dashboard::view::{self, AuditView, TaskStateKey, TasksView, View};
use crate::request::request_id::HiddenTexts;

/// Columns of the queues.
const QUEUE_COLUMNS: [&str; 11] = [
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
/// States of tasks, in the order of the columns of the queues.
const STATES: [TaskState; 7] = [
    TaskState::Pending,
    TaskState::Running,
    TaskState::Scheduled,
    TaskState::Blocked,
    TaskState::Failed,
    TaskState::Succeeded,
    TaskState::Aborted,
];

/// Returns the queues with their numbers of tasks.
pub(in crate::dashboard) fn queues(
    browser: &Browser,
    identity: &Identity,
    now: Timestamp,
    queues: &[QueueStatus],
) -> Markup {
    let may_pause = identity.must_be(Role::Operator).is_ok();
    let rows = html! { @for queue in queues { (queue_row(browser, may_pause, now, queue)) } };
    html! {
        div.head { h1 { "Queues" } }
        @if queues.is_empty() {
            (parts::empty("No queues", &html! { "Add a task with " code { "leasehold tasks add QUEUE PAYLOAD" } "." }))
        } @else {
            (parts::table("Queues and their numbers of tasks", &QUEUE_COLUMNS, &rows))
        }
    }
}

fn queue_row(browser: &Browser, may_pause: bool, now: Timestamp, queue: &QueueStatus) -> Markup {
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

/// Returns the schedules.
pub(in crate::dashboard) fn schedules(
    browser: &Browser,
    identity: &Identity,
    now: Timestamp,
    schedules: &[Schedule],
) -> Markup {
    let may = identity.must_be(Role::Operator).is_ok();
    let rows = html! {
        @for schedule in schedules {
            @let queue = TasksView { queue: Some(schedule.queue.clone()), ..TasksView::default() };
            @let action = if schedule.paused { "resume" } else { "pause" };
            tr id=(format!("schedule-{}", view::encoded(schedule.name.as_str()))) {
                th scope="row" { (parts::name(&schedule.name)) }
                td { @if schedule.paused { (parts::badge("warn", "paused")) } @else { (parts::badge("good", "active")) } }
                td.mono { (schedule.cron) }
                td { (schedule.zone) }
                td { @if schedule.paused { span.quiet { "paused" } } @else if let Some(next) = schedule.next(now) { (parts::when(now, next)) } }
                td.wide { a href=(browser.link(&View::Tasks(queue).address())) { (parts::name(&schedule.queue)) } }
                td.wide { @if let Some(lock) = &schedule.lock { (parts::lock_link(browser, lock)) } }
                td { @if may {
                    a.button href=(browser.link(&format!("{}/{action}", view::path("schedules", &schedule.name)))) data-dialog {
                        @if schedule.paused { "Resume…" } @else { "Pause…" }
                    }
                } }
            }
        }
    };
    let columns = ["Schedule", "State", "Cron", "Time zone", "Next", "Queue", "Lock", ""];
    html! {
        div.head { h1 { "Schedules" } }
        @if schedules.is_empty() {
            (parts::empty("No schedules", &html! { "Add one with " code { "leasehold schedules set" } "." }))
        } @else { (parts::table("Schedules", &columns, &rows)) }
    }
}

/// Returns the workers.
pub(in crate::dashboard) fn workers(now: Timestamp, workers: &[WorkerStatus]) -> Markup {
    let rows = html! {
        @for worker in workers {
            @let shown = WorkerView::new(worker, now);
            @let kind = match shown.state { "alive" => "good", "draining" => "wait", _ => "bad" };
            tr id=(format!("worker-{}", shown.id)) {
                th scope="row" { (parts::worker(worker.info.id)) }
                td { (parts::badge(kind, shown.state)) }
                td.wide { (parts::name(&shown.host)) " " span.quiet { "pid " (shown.pid) } }
                td.wide { @for (number, queue) in shown.queues.iter().enumerate() { @if number > 0 { ", " } (parts::name(queue)) } }
                td { span.lease {
                    progress value=(shown.busy.min(shown.slots)) max=(shown.slots.max(1)) aria-label="busy slots" {}
                    span.left { (shown.busy) " of " (shown.slots) }
                } }
                td { (parts::ago(now, worker.seen_at)) }
                td { (parts::age(now, worker.started_at)) }
                td { (shown.version) }
            }
        }
    };
    let columns = ["Worker", "State", "Host", "Queues", "Busy", "Heartbeat", "Up", "Version"];
    html! {
        div.head { h1 { "Workers" } }
        @if workers.is_empty() {
            (parts::empty("No workers", &html! { "Start one with " code { "leasehold tasks work QUEUE -- COMMAND" } "." }))
        } @else { (parts::table("Workers", &columns, &rows)) }
    }
}

/// Returns the events of all locks.
pub(in crate::dashboard) fn audit(
    browser: &Browser,
    view: &AuditView,
    events: &[EventView],
    next: Option<&str>,
) -> Markup {
    let link = |view: AuditView| browser.link(&View::Audit(view).address());
    let tabs: Vec<_> = AuditView::KINDS
        .iter()
        .map(|(kind, label)| {
            let address = link(AuditView { kind: (*kind).to_owned(), before: None });
            (address, (*label).to_owned(), None, view.kind == *kind)
        })
        .collect();
    let export = |format: &str| {
        let kind =
            if view.kind.is_empty() { String::new() } else { format!("?kind={}", view::encoded(&view.kind)) };
        browser.link(&format!("/audit.{format}{kind}"))
    };
    html! {
        div.head {
            h1 { "Audit" }
            div.actions {
                a.button href=(export("ndjson")) download { "Export NDJSON" }
                a.button href=(export("csv")) download { "Export CSV" }
            }
        }
        (parts::tabs("Kind of the events", &tabs))
        (events_table(browser, "Events of all locks, newest first", events, true))
        (parts::pager(
            view.before.as_ref().map(|_| link(AuditView { before: None, ..view.clone() })),
            next.map(|next| link(AuditView { before: Some(next.to_owned()), ..view.clone() })),
        ))
    }
}

/// Returns the health of the store, without its address.
pub(in crate::dashboard) fn health(now: Timestamp, hidden: &HiddenTexts, health: &HealthContent) -> Markup {
    let issues = health.checks.iter().filter(|check| check.issue.is_some()).count();
    let rows = html! {
        @for check in &health.checks {
            tr {
                th scope="row" { (check.name) }
                td { @if check.issue.is_some() { (parts::badge("bad", "issue")) } @else { (parts::badge("good", "ok")) } }
                td.wide { bdi { (hidden.remove_from(&check.detail)) } }
                td.wide { @if let Some(issue) = &check.issue { code { (issue.code) } " " (hidden.remove_from(&issue.hint)) } }
            }
        }
    };
    html! {
        div.head {
            h1 { "Health of the store "
                @if issues > 0 { (parts::badge("bad", &format!("{issues} issues"))) } @else { (parts::badge("good", "no issues")) }
            }
        }
        section.card {
            (parts::properties(&[
                ("Engine", Some(html! { (health.engine) })),
                ("Round trip", Some(html! { (format!("{:.1} ms", std::time::Duration::from_micros(health.ping_micros).as_secs_f64() * 1e3)) })),
                ("Time of the store", Some(parts::exact(now))),
                ("Request quota", health.quota.map(|(left, of, renews)| html! {
                    (parts::grouped(left)) " of " (parts::grouped(of)) " left, renewed " (parts::when(now, renews))
                })),
            ]))
        }
        section {
            h2 { "Checks" }
            @if health.checks.is_empty() { p.quiet { "This engine has no checks of its own." } }
            @else { (parts::table("Checks of the store", &["Check", "Result", "Detail", "What to do"], &rows)) }
            p.quiet { "The same checks: " code { "leasehold doctor" } }
        }
    }
}
