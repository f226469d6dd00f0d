//! Chooses the HTML for the data of a page.

use super::layout::Page;
use crate::dashboard::data::{Content, Data};
use crate::dashboard::http::viewer::Viewer;
use crate::dashboard::pages;
use crate::dashboard::view::View;
use crate::problem::{ApiResult, Problem};
use crate::request::request_id::HiddenTexts;

/// Returns the page.
pub(in crate::dashboard) fn render(
    viewer: &Viewer,
    hidden: &HiddenTexts,
    view: &View,
    data: &Data,
) -> ApiResult<Page> {
    let (browser, identity, now) = (&viewer.browser, &viewer.identity, data.now);
    let (title, section, body) = match (view, &data.content) {
        (View::Locks(view), Content::Locks { locks, next }) => {
            ("Locks".to_owned(), "/locks", pages::locks::page(browser, view, now, (locks, next.as_deref())))
        }
        (View::Lock { name, .. }, Content::Lock(lock)) => {
            (name.to_string(), "/locks", pages::lock::page(browser, identity, now, lock))
        }
        (View::Queues, Content::Queues(queues)) => {
            ("Queues".to_owned(), "/queues", pages::queues::page(browser, identity, now, queues))
        }
        (View::Tasks(view), Content::Tasks(tasks)) => {
            ("Tasks".to_owned(), "/tasks", pages::tasks::page(browser, identity, view, now, tasks))
        }
        (View::Task(id), Content::Task(task)) => {
            (format!("Task {id}"), "/tasks", pages::task::page(browser, identity, now, task))
        }
        (View::Executions(view), Content::Executions { executions, next, workflows }) => {
            let list = pages::executions::List { executions, next: next.as_deref(), workflows };
            ("Executions".to_owned(), "/executions", pages::executions::list(browser, view, now, &list))
        }
        (View::Execution(_), Content::Execution(execution)) => (
            format!("Execution of {}", execution.workflow),
            "/executions",
            pages::executions::one(browser, identity, now, execution),
        ),
        (View::Schedules, Content::Schedules(schedules)) => {
            ("Schedules".to_owned(), "/schedules", pages::lists::schedules(browser, identity, now, schedules))
        }
        (View::Workers, Content::Workers(workers)) => {
            ("Workers".to_owned(), "/workers", pages::lists::workers(now, workers))
        }
        (View::Audit(view), Content::Audit { events, next }) => {
            ("Audit".to_owned(), "/audit", pages::lists::audit(browser, view, events, next.as_deref()))
        }
        (View::Health, Content::Health(health)) => {
            ("Health".to_owned(), "/health", pages::lists::health(now, hidden, health))
        }
        (View::Overview(span), Content::Overview(overview)) => {
            ("Overview".to_owned(), "/", pages::overview::page(browser, *span, now, overview))
        }
        _ => return Err(Problem::new("INTERNAL", "the page and its data do not match")),
    };
    let live = view.is_live().then(|| view.address());
    Ok(Page { title, section, body, now: Some(now), live })
}
