//! Executions of workflows: the list, and one execution.

use leasehold::Execution;
use leasehold::client::WorkflowStatus;
use leasehold::model::{TaskState, Timestamp};
use maud::{Markup, html};

use crate::access::{Identity, Role};
use crate::dashboard::http::browser::Browser;
use crate::dashboard::pages::parts;
use crate::dashboard::view::{self, ExecutionsView, TaskStateKey, View};

const COLUMNS: [&str; 8] =
    ["Execution", "Workflow", "State", "Key", "Started by", "Created", "Duration", "Token"];

/// Executions of one page.
pub(in crate::dashboard) struct List<'a> {
    pub(in crate::dashboard) executions: &'a [Execution],
    pub(in crate::dashboard) next: Option<&'a str>,
    pub(in crate::dashboard) workflows: &'a [WorkflowStatus],
}

/// Returns the list.
pub(in crate::dashboard) fn list(
    browser: &Browser,
    view: &ExecutionsView,
    now: Timestamp,
    list: &List<'_>,
) -> Markup {
    let link = |view: ExecutionsView| browser.link(&View::Executions(view).address());
    let shown =
        |workflow: &&WorkflowStatus| view.workflow.as_ref().is_none_or(|name| workflow.workflow == *name);
    let count =
        |state: TaskState| list.workflows.iter().filter(shown).map(|one| one.counts.get(state)).sum::<u64>();
    let tab = |state: Option<TaskState>, label: &str| {
        let key = state.map(TaskStateKey::of);
        let count = state.map_or_else(|| TaskState::ALL.into_iter().map(count).sum(), count);
        let address = link(ExecutionsView { state: key, after: None, ..view.clone() });
        (address, label.to_owned(), Some(count), view.state == key)
    };
    let mut tabs = vec![tab(None, "All")];
    tabs.extend(TaskState::ALL.map(|state| tab(Some(state), state.as_str())));
    let rows = html! { @for execution in list.executions { (row(browser, now, execution)) } };
    html! {
        div.head {
            h1 { "Executions" @if let Some(workflow) = &view.workflow { " of " (parts::name(workflow)) } }
            div.actions {
                @if view.workflow.is_some() { a.button href=(link(ExecutionsView { state: view.state, ..ExecutionsView::default() })) { "All workflows" } }
                @else { @for workflow in list.workflows.iter().take(12) {
                    a.button href=(link(ExecutionsView { workflow: Some(workflow.workflow.clone()), ..ExecutionsView::default() })) { (parts::name(&workflow.workflow)) }
                } }
            }
        }
        (parts::tabs("State of the executions", &tabs))
        @if list.executions.is_empty() && list.next.is_some() {
            (parts::empty("No executions among the tasks that were searched", &html! { "There may be older ones on the next page." }))
        } @else if list.executions.is_empty() {
            (parts::empty("No executions here", &html! { "Start a workflow with " code { "POST /api/v1/workflows/{name}/executions" } " or a webhook." }))
        } @else {
            (parts::table("Executions, newest first", &COLUMNS, &rows))
        }
        (parts::pager(
            view.after.as_ref().map(|_| link(ExecutionsView { after: None, ..view.clone() })),
            list.next.map(|next| link(ExecutionsView { after: Some(next.to_owned()), ..view.clone() })),
        ))
    }
}

fn row(browser: &Browser, now: Timestamp, execution: &Execution) -> Markup {
    let id = execution.id.to_string();
    let workflow = ExecutionsView { workflow: Some(execution.workflow.clone()), ..ExecutionsView::default() };
    html! {
        tr id=(id) {
            th scope="row" { a.mono href=(browser.link(&view::path("executions", &id))) title=(id) { "…" (parts::short(&id)) } }
            td.wide { a href=(browser.link(&View::Executions(workflow).address())) { (parts::name(&execution.workflow)) } }
            td { (parts::task_state(execution.state)) }
            td.wide { @if let Some(key) = &execution.key { (parts::name(key)) @if execution.attempt > 1 { " " span.quiet { "attempt " (execution.attempt) } } } }
            td.wide { @if let Some(by) = &execution.started_by { (parts::name(by)) } }
            td { (parts::ago(now, execution.created_at)) }
            td { (duration(now, execution)) }
            td.number { (execution.token) }
        }
    }
}

fn duration(now: Timestamp, execution: &Execution) -> Markup {
    html! {
        @match (execution.started_at, execution.finished_at) {
            (Some(began), Some(ended)) => (parts::format_age(ended.since(began))),
            (Some(began), None) => (parts::age(now, began)),
            _ => {},
        }
    }
}

/// Returns the page of one execution.
pub(in crate::dashboard) fn one(
    browser: &Browser,
    identity: &Identity,
    now: Timestamp,
    execution: &Execution,
) -> Markup {
    let id = execution.id.to_string();
    let may = identity.must_be(Role::Operator).is_ok();
    html! {
        nav.crumbs aria-label="Path" { a href=(browser.link("/executions")) { "Executions" } }
        div.head {
            h1 { (parts::name(&execution.workflow)) " " (parts::task_state(execution.state)) }
            div.actions {
                @if may && !execution.state.is_terminal() {
                    a.button.danger href=(browser.link(&format!("{}/abort", view::path("executions", &id)))) data-dialog { "Abort…" }
                }
            }
        }
        @if let Some(reason) = &execution.reason { p.problem { (parts::name(reason)) } }
        section.card {
            (parts::properties(&[
                ("Execution", Some(html! { span.mono { (id) } })),
                ("Key", execution.key.as_ref().map(parts::name)),
                ("Attempt for the key", Some(html! { (execution.attempt) })),
                ("Retry of", execution.retry_of.map(|id| html! { a.mono href=(browser.link(&view::path("executions", &id))) { (id) } })),
                ("Started by", execution.started_by.as_ref().map(parts::name)),
                ("Token", Some(html! { span.mono { (execution.token) } })),
                ("Created", Some(parts::ago(now, execution.created_at))),
                ("Started", execution.started_at.map(|at| parts::ago(now, at))),
                ("Finished", execution.finished_at.map(|at| parts::ago(now, at))),
                ("Duration", execution.started_at.map(|_| duration(now, execution))),
                ("Lease", execution.lease_expires_at.filter(|_| execution.state == TaskState::Running).map(|at| parts::when(now, at))),
                ("Abort requested by", execution.cancel_requested_by.as_ref().map(parts::name)),
                ("Lock of the workflow", Some(parts::lock_link(browser, &execution.workflow.lock()))),
            ]))
        }
        p { a.button href=(browser.link(&view::path("tasks", &execution.id.task()))) { "Task with attempts, input and output" } }
        section { h2 { "Command line" } (parts::command(&format!("leasehold executions show {id}"))) }
    }
}
