//! Actions of viewers: a form that says what will happen, and the call that does it. The role and the
//! scope that an action needs are those of the same operation in the API.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use leasehold::LockStatus;
use leasehold::model::{ExecutionId, LockName, QueueName, Reason, ScheduleName, TaskId, Token};
use maud::{Markup, html};
use percent_encoding::percent_decode_str;

use super::http::session::{Form, Viewer};
use super::pages::layout::{self, Frame, Page};
use super::pages::parts;
use super::view;
use crate::access::{Identity, Role};
use crate::problem::{ApiResult, Problem};
use crate::server::App;
use crate::status;

/// Action of a viewer on one object.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Action {
    AskRelease(LockName),
    ForceRelease(LockName),
    Retry(TaskId),
    Cancel(TaskId),
    Abort(ExecutionId),
    PauseQueue(QueueName),
    ResumeQueue(QueueName),
    PauseSchedule(ScheduleName),
    ResumeSchedule(ScheduleName),
}

/// Messages after an action, by the word in the address of the page.
const NOTICES: [(&str, &str); 9] = [
    ("asked", "The holders were asked to release the lock."),
    ("forced", "The lock was released by force."),
    ("retried", "The task will run again."),
    ("cancelled", "The task was cancelled, or its worker was asked to stop it."),
    ("aborted", "The execution was aborted, or its process was asked to stop."),
    ("queue-paused", "The queue is paused."),
    ("queue-resumed", "The queue is resumed."),
    ("schedule-paused", "The schedule is paused."),
    ("schedule-resumed", "The schedule is resumed."),
];

/// Returns the message for the word in the query of a page.
pub(super) fn notice(query: &str) -> Option<&'static str> {
    let word = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "notice")?.1;
    NOTICES.iter().find(|(known, _)| *known == word).map(|(_, text)| *text)
}

/// Shows the form of an action.
pub(super) async fn show(app: App, viewer: Viewer, uri: Uri) -> Response {
    let shown = async {
        let action = Action::parse(uri.path())?;
        action.may(&app, &viewer.identity).await?;
        let body = action.form(&app, &viewer, "").await?;
        Ok((action, body))
    };
    match shown.await {
        Ok((action, body)) => respond(&viewer, status::OK, &action, body),
        Err(problem) => {
            layout::problem_page(&app, &viewer.browser, Some((&viewer.identity, &viewer.csrf)), &problem)
        }
    }
}

/// Performs an action and sends the viewer back to the page of its object. If the action fails, its
/// form is shown again with the reason.
pub(super) async fn perform(app: App, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let viewer = match Viewer::from_request_parts(&mut parts, &app).await {
        Ok(viewer) => viewer,
        Err(page) => return page.into_response(),
    };
    let identity = Some((&viewer.identity, viewer.csrf.as_str()));
    let request = Request::from_parts(parts, body);
    let path = request.uri().path().to_owned();
    let prepared = async {
        let form = Form::from_request(request, &app).await?;
        viewer.check(&app, &form)?;
        let action = Action::parse(&path)?;
        action.may(&app, &viewer.identity).await?;
        Ok((action, form))
    };
    let (action, form) = match prepared.await {
        Ok(prepared) => prepared,
        Err(problem) => return layout::problem_page(&app, &viewer.browser, identity, &problem),
    };
    match action.perform(&app, &viewer.identity, &form).await {
        Ok(notice) => {
            app.dashboard.snapshots.clear();
            layout::redirect(&viewer.browser, &format!("{}?notice={notice}", action.back()))
        }
        Err(problem) => {
            let body = action.failed(&app, &viewer, &form, &problem).await;
            respond(&viewer, problem.status(), &action, body)
        }
    }
}

fn respond(viewer: &Viewer, code: axum::http::StatusCode, action: &Action, body: Markup) -> Response {
    let frame = Frame {
        browser: &viewer.browser,
        identity: Some(&viewer.identity),
        csrf: &viewer.csrf,
        notice: None,
    };
    let page =
        Page { title: action.title().to_owned(), section: action.section(), body, now: None, live: None };
    layout::respond(code, &frame, &page)
}

impl Action {
    fn parse(path: &str) -> ApiResult<Self> {
        let segments: Vec<_> =
            path.split('/').skip(1).map(|segment| percent_decode_str(segment).decode_utf8_lossy()).collect();
        let segments: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
        Ok(match segments[..] {
            ["locks", name, "ask"] => Self::AskRelease(LockName::new(name)?),
            ["locks", name, "force-release"] => Self::ForceRelease(LockName::new(name)?),
            ["tasks", id, "retry"] => Self::Retry(id.parse()?),
            ["tasks", id, "cancel"] => Self::Cancel(id.parse()?),
            ["executions", id, "abort"] => Self::Abort(id.parse()?),
            ["queues", name, "pause"] => Self::PauseQueue(QueueName::new(name)?),
            ["queues", name, "resume"] => Self::ResumeQueue(QueueName::new(name)?),
            ["schedules", name, "pause"] => Self::PauseSchedule(ScheduleName::new(name)?),
            ["schedules", name, "resume"] => Self::ResumeSchedule(ScheduleName::new(name)?),
            _ => return Err(Problem::new("UNKNOWN_PATH", format!("there is no page {path}"))),
        })
    }

    /// Rejects a viewer who may not do this through the API.
    async fn may(&self, app: &App, identity: &Identity) -> ApiResult<()> {
        identity.must_be(self.role())?;
        match self {
            Self::AskRelease(name) | Self::ForceRelease(name) => identity.must_reach_lock(name),
            Self::Retry(id) | Self::Cancel(id) => {
                identity.must_reach_queue(&app.leasehold.tasks()?.get(*id).await?.queue)
            }
            Self::Abort(id) => {
                identity.must_reach_queue(&app.leasehold.workflows()?.get(*id).await?.workflow.queue())
            }
            Self::PauseQueue(name) | Self::ResumeQueue(name) => identity.must_reach_queue(name),
            Self::PauseSchedule(_) | Self::ResumeSchedule(_) => identity.must_reach_all(),
        }
    }

    fn role(&self) -> Role {
        if matches!(self, Self::ForceRelease(_)) { Role::Admin } else { Role::Operator }
    }

    /// Performs the action and returns the word of its message.
    async fn perform(&self, app: &App, identity: &Identity, form: &Form) -> ApiResult<&'static str> {
        let by = identity.holder()?;
        let reason = Some(form.get("reason").trim()).filter(|reason| !reason.is_empty());
        let reason = reason.map(Reason::new).transpose()?;
        match self {
            Self::AskRelease(name) => {
                app.leasehold.locks().request_release(name, by, reason).await?;
                Ok("asked")
            }
            Self::ForceRelease(name) => {
                if form.get("name") != name.as_str() {
                    return Err(Problem::invalid(
                        "the typed name is not the name of the lock; nothing was released",
                    ));
                }
                let reason =
                    reason.ok_or_else(|| Problem::invalid("a reason is missing; nothing was released"))?;
                app.leasehold.locks().force_release(name, token(form)?, by, reason).await?;
                Ok("forced")
            }
            Self::Retry(id) => {
                app.leasehold.tasks()?.retry(*id, by).await.map(|_| "retried").map_err(Into::into)
            }
            Self::Cancel(id) => {
                app.leasehold.tasks()?.cancel(*id, by, reason).await?;
                Ok("cancelled")
            }
            Self::Abort(id) => {
                app.leasehold.workflows()?.abort(*id, by, reason).await?;
                Ok("aborted")
            }
            Self::PauseQueue(name) => {
                app.leasehold.tasks()?.pause(name, by, reason).await?;
                Ok("queue-paused")
            }
            Self::ResumeQueue(name) => {
                app.leasehold.tasks()?.resume(name).await?;
                Ok("queue-resumed")
            }
            Self::PauseSchedule(name) => {
                app.leasehold.schedules()?.pause(name).await?;
                Ok("schedule-paused")
            }
            Self::ResumeSchedule(name) => {
                app.leasehold.schedules()?.resume(name).await?;
                Ok("schedule-resumed")
            }
        }
    }

    /// Returns the form again, with the reason of the failure. If the lock has another holder by now, the
    /// form is not shown: the viewer has to look at the lock first.
    async fn failed(&self, app: &App, viewer: &Viewer, form: &Form, problem: &Problem) -> Markup {
        let moved_on = matches!(self, Self::ForceRelease(_)) && problem.code() == "LOCK_NOT_HELD";
        let again = if moved_on { None } else { self.form(app, viewer, form.get("reason")).await.ok() };
        html! {
            @if moved_on {
                section.action {
                    h1 { (self.title()) }
                    (layout::problem_text(app, problem))
                    p { "Nothing was released: the lease with the token that this form showed has ended. \
                         The lock is free, or another holder has it." }
                    p { a.button href=(viewer.browser.link(&self.back())) { "Look at the lock" } }
                }
            } @else {
                (layout::problem_text(app, problem))
                @if let Some(again) = again { (again) }
            }
        }
    }

    async fn form(&self, app: &App, viewer: &Viewer, reason: &str) -> ApiResult<Markup> {
        let content = match self {
            Self::AskRelease(name) => html! {
                p { "The holders of " (parts::name(name)) " are asked to release the lock. They may finish their work first." }
                (reason_field(reason, false))
            },
            Self::ForceRelease(name) => {
                let status = app.leasehold.locks().status(name).await?;
                force_release(&status, reason)
            }
            Self::Retry(id) => html! {
                p { "Task " span.mono { (id) } " runs again, with all its attempts. A scheduled task runs now." }
            },
            Self::Cancel(id) => html! {
                p { "Task " span.mono { (id) } " is cancelled. If it runs, its worker is asked to stop it." }
                (reason_field(reason, false))
            },
            Self::Abort(id) => html! {
                p { "Execution " span.mono { (id) } " is aborted. If it runs, its process is asked to stop; the lock of the \
                     workflow stays held until the process has ended." }
                (reason_field(reason, false))
            },
            Self::PauseQueue(name) => html! {
                p { "No task is leased from the queue " (parts::name(name)) " until it is resumed. Running tasks continue." }
                (reason_field(reason, false))
            },
            Self::ResumeQueue(name) => {
                html! { p { "Workers lease tasks from the queue " (parts::name(name)) " again." } }
            }
            Self::PauseSchedule(name) => {
                html! { p { "The schedule " (parts::name(name)) " adds no tasks until it is resumed." } }
            }
            Self::ResumeSchedule(name) => {
                html! { p { "The schedule " (parts::name(name)) " adds tasks again." } }
            }
        };
        let is_danger = matches!(self, Self::ForceRelease(_) | Self::Cancel(_) | Self::Abort(_));
        Ok(html! {
            section.action {
                h1 { (self.title()) }
                form method="post" action=(viewer.browser.link(&self.address())) {
                    input type="hidden" name="csrf" value=(viewer.csrf);
                    (content)
                    div.buttons {
                        a.button href=(viewer.browser.link(&self.back())) data-close { "Back" }
                        button.primary.danger[is_danger] type="submit" { (self.title()) }
                    }
                }
            }
        })
    }

    const fn title(&self) -> &'static str {
        match self {
            Self::AskRelease(_) => "Ask to release",
            Self::ForceRelease(_) => "Force release",
            Self::Retry(_) => "Retry task",
            Self::Cancel(_) => "Cancel task",
            Self::Abort(_) => "Abort execution",
            Self::PauseQueue(_) => "Pause queue",
            Self::ResumeQueue(_) => "Resume queue",
            Self::PauseSchedule(_) => "Pause schedule",
            Self::ResumeSchedule(_) => "Resume schedule",
        }
    }

    const fn section(&self) -> &'static str {
        match self {
            Self::AskRelease(_) | Self::ForceRelease(_) => "/locks",
            Self::Retry(_) | Self::Cancel(_) => "/tasks",
            Self::Abort(_) => "/executions",
            Self::PauseQueue(_) | Self::ResumeQueue(_) => "/queues",
            Self::PauseSchedule(_) | Self::ResumeSchedule(_) => "/schedules",
        }
    }

    /// Returns the page of the object.
    fn back(&self) -> String {
        match self {
            Self::AskRelease(name) | Self::ForceRelease(name) => view::lock_path(name),
            Self::Retry(id) | Self::Cancel(id) => view::path("tasks", id),
            Self::Abort(id) => view::path("executions", id),
            Self::PauseQueue(_) | Self::ResumeQueue(_) => "/queues".to_owned(),
            Self::PauseSchedule(_) | Self::ResumeSchedule(_) => "/schedules".to_owned(),
        }
    }

    fn address(&self) -> String {
        match self {
            Self::AskRelease(name) => format!("{}/ask", view::lock_path(name)),
            Self::ForceRelease(name) => format!("{}/force-release", view::lock_path(name)),
            Self::Retry(id) => format!("{}/retry", view::path("tasks", id)),
            Self::Cancel(id) => format!("{}/cancel", view::path("tasks", id)),
            Self::Abort(id) => format!("{}/abort", view::path("executions", id)),
            Self::PauseQueue(name) => format!("{}/pause", view::path("queues", name)),
            Self::ResumeQueue(name) => format!("{}/resume", view::path("queues", name)),
            Self::PauseSchedule(name) => format!("{}/pause", view::path("schedules", name)),
            Self::ResumeSchedule(name) => format!("{}/resume", view::path("schedules", name)),
        }
    }
}

fn token(form: &Form) -> ApiResult<Token> {
    let number = form.get("token").parse::<u64>();
    let number =
        number.map_err(|_| Problem::invalid("the token of the lease is missing; nothing was released"))?;
    Ok(Token::try_from(number)?)
}

fn reason_field(reason: &str, is_required: bool) -> Markup {
    html! {
        label for="reason" { "Reason" @if !is_required { " " span.quiet { "(optional)" } } }
        input #reason type="text" name="reason" value=(reason) required[is_required] maxlength="200" autocomplete="off" dir="auto";
    }
}

/// Returns the fields of a forced release, with what is known of the holder.
fn force_release(status: &LockStatus, reason: &str) -> Markup {
    let now = status.now;
    html! {
        @if status.holders.is_empty() {
            p { "The lock " (parts::name(&status.name)) " has no holder now." }
        }
        @for (number, held) in status.holders.iter().enumerate() {
            div.choice {
                input type="radio" name="token" id=(format!("token-{}", held.token)) value=(held.token) checked[number == 0] required;
                label for=(format!("token-{}", held.token)) {
                    (parts::name(&held.holder)) ", token " span.mono { (held.token) } br;
                    @if held.stale {
                        span.quiet { "Stale: the lease has expired, or its process has exited." }
                    } @else {
                        strong { "Looks alive" } ": renewed " (parts::ago(now, held.renewed_at)) ", "
                        (parts::when(now, held.expires_at)) " the lease expires by itself."
                    }
                }
            }
        }
        p { "The holder is not stopped: it may still be working. From now on its token is stale for every resource that checks tokens." }
        label for="name" { "Type the name of the lock: " code { (parts::name(&status.name)) } }
        input #name type="text" name="name" required autocomplete="off" spellcheck="false" dir="auto";
        (reason_field(reason, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_survives_the_round_trip_through_its_address() {
        let id = "01890a5d-ac96-774b-bcce-b302099a8057";
        for path in [
            "/locks/a%2Fb/ask".to_owned(),
            "/locks/%3Cb%3E/force-release".to_owned(),
            format!("/tasks/{id}/retry"),
            format!("/tasks/{id}/cancel"),
            format!("/executions/exec_{id}/abort"),
            "/queues/mail/pause".to_owned(),
            "/queues/mail/resume".to_owned(),
            "/schedules/nightly/pause".to_owned(),
            "/schedules/nightly/resume".to_owned(),
        ] {
            assert_eq!(Action::parse(&path).unwrap().address(), path);
        }
        assert!(Action::parse("/locks/a/steal").is_err());
    }

    #[test]
    fn only_known_messages_are_shown() {
        assert_eq!(notice("notice=forced"), Some("The lock was released by force."));
        assert_eq!(notice("notice=%3Cb%3E"), None);
        assert_eq!(notice(""), None);
    }
}
