//! List of tasks, with the reason why each does not run.

use leasehold::model::{Task, TaskReason, TaskState, Timestamp};
use maud::{Markup, html};

use crate::access::Identity;
use crate::dashboard::data::TasksContent;
use crate::dashboard::http::browser::Browser;
use crate::dashboard::pages::parts;
use crate::dashboard::view::{TaskStateKey, TasksView, View};

const COLUMNS: [&str; 9] = ["Task", "Queue", "State", "Attempt", "Worker", "Lease", "Priority", "Age", "Why"];

/// Returns the page.
pub(in crate::dashboard) fn page(
    browser: &Browser,
    identity: &Identity,
    view: &TasksView,
    now: Timestamp,
    content: &TasksContent,
) -> Markup {
    let link = |view: TasksView| browser.link(&View::Tasks(view).address());
    let tab = |state: Option<TaskState>, label: &str| {
        let key = state.map(TaskStateKey::of);
        let count = match state {
            Some(state) => content.counts.get(state.as_str()).copied().unwrap_or_default(),
            None => content.counts.values().sum(),
        };
        let address = link(TasksView { state: key, after: None, ..view.clone() });
        (address, label.to_owned(), Some(count), view.state == key)
    };
    let mut tabs = vec![tab(None, "All")];
    tabs.extend(TaskState::ALL.map(|state| tab(Some(state), state.as_str())));
    let rows = html! {
        @for (task, reason) in &content.tasks { (row(browser, identity, now, task, reason.as_ref())) }
    };
    html! {
        div.head {
            h1 { "Tasks" @if let Some(queue) = &view.queue { " of " (parts::name(queue)) } }
            @if view.queue.is_some() || view.lock.is_some() {
                div.actions {
                    @if let Some(lock) = &view.lock { span.quiet { "with the lock " (parts::name(lock)) } }
                    a.button href=(link(TasksView { state: view.state, ..TasksView::default() })) { "All queues" }
                }
            }
        }
        (parts::tabs("State of the tasks", &tabs))
        @if content.tasks.is_empty() {
            (parts::empty("No tasks here", &html! { "No task is in this state now." }))
        } @else {
            (parts::table("Tasks, newest first", &COLUMNS, &rows))
        }
        (parts::pager(
            view.after.as_ref().map(|_| link(TasksView { after: None, ..view.clone() })),
            content.next.as_ref().map(|next| link(TasksView { after: Some(next.clone()), ..view.clone() })),
        ))
    }
}

fn row(
    browser: &Browser,
    identity: &Identity,
    now: Timestamp,
    task: &Task,
    reason: Option<&TaskReason>,
) -> Markup {
    let queue = TasksView { queue: Some(task.queue.clone()), ..TasksView::default() };
    html! {
        tr id=(format!("task-{}", task.id)) {
            th scope="row" { (parts::task_link(browser, task.id)) }
            td.wide { a href=(browser.link(&View::Tasks(queue).address())) { (parts::name(&task.queue)) } }
            td { (parts::task_state(task.state)) }
            td.number { (task.attempt) "/" (task.retries.attempts) }
            td { @if let Some(worker) = task.worker.filter(|_| task.state == TaskState::Running) { (parts::worker(worker)) } }
            td { (lease(now, task)) }
            td.number { (task.priority.get()) }
            td { (parts::age(now, task.created_at)) }
            // Other columns have the worker and the lease of a running task.
            td.wide.quiet { @if let Some(reason) = reason.filter(|_| task.state != TaskState::Running) {
                (text(identity, now, reason))
            } }
        }
    }
}

/// Returns the remaining time of the lease of a running task.
pub(in crate::dashboard) fn lease(now: Timestamp, task: &Task) -> Markup {
    let running = task.state == TaskState::Running;
    html! {
        @if let Some(until) = task.lease_expires_at.filter(|_| running) {
            @let renewed = task.leased_at.unwrap_or(now).max(task.updated_at);
            (parts::lease_bar(now, until, until.since(renewed.min(now))))
        }
    }
}

/// Returns a reason as a sentence. A token with scopes sees no names of holders and hosts, as in the API.
pub(in crate::dashboard) fn text(identity: &Identity, now: Timestamp, reason: &TaskReason) -> Markup {
    let shown = match reason.clone() {
        TaskReason::BehindLock { lock, until, .. } if identity.is_scoped() => {
            TaskReason::BehindLock { lock, holder: None, until }
        }
        TaskReason::Running { worker, since, until, .. } if identity.is_scoped() => {
            TaskReason::Running { worker, host: None, since, until }
        }
        shown => shown,
    };
    html! { bdi { (shown.text(now)) } }
}
