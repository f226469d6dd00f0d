//! Tasks: the list, and one task with its attempts, its payload, its result and its output.

use leasehold::client::{AttemptOutput, OutputStream};
use leasehold::model::{Payload, Task, TaskReason, TaskState, Timestamp};
use maud::{Markup, html};

use crate::access::{Identity, Role};
use crate::dashboard::data::{TaskContent, TasksContent};
use crate::dashboard::http::browser::Browser;
use crate::dashboard::pages::parts;
use crate::dashboard::view::{self, TaskStateKey, TasksView, View};

const COLUMNS: [&str; 9] = ["Task", "Queue", "State", "Attempt", "Worker", "Lease", "Priority", "Age", "Why"];
/// Maximum size of a payload on the page; the whole payload can be downloaded.
const MAX_SHOWN: usize = 8 * 1024;
/// Maximum number of lines of output of one attempt on the page.
const MAX_LINES: usize = 500;

/// Returns the list, with the reason why each task does not run.
pub(in crate::dashboard) fn list(
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
                (reason_text(identity, now, reason))
            } }
        }
    }
}

/// Returns the remaining time of the lease of a running task.
fn lease(now: Timestamp, task: &Task) -> Markup {
    let running = task.state == TaskState::Running;
    html! {
        @if let Some(until) = task.lease_expires_at.filter(|_| running) {
            @let renewed = task.leased_at.unwrap_or(now).max(task.updated_at);
            (parts::lease_bar(now, until, until.since(renewed.min(now))))
        }
    }
}

/// Returns a reason as a sentence. A token with scopes sees no names of holders and hosts, as in the API.
fn reason_text(identity: &Identity, now: Timestamp, reason: &TaskReason) -> Markup {
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

/// Returns the page of one task: why it does not run, its attempts, its payload, result and output.
pub(in crate::dashboard) fn one(
    browser: &Browser,
    identity: &Identity,
    now: Timestamp,
    content: &TaskContent,
) -> Markup {
    let task = &content.explanation.task;
    let queue = TasksView { queue: Some(task.queue.clone()), ..TasksView::default() };
    html! {
        nav.crumbs aria-label="Path" {
            a href=(browser.link("/tasks")) { "Tasks" } " / "
            a href=(browser.link(&View::Tasks(queue).address())) { (parts::name(&task.queue)) }
        }
        div.head {
            h1 { span.mono { (task.id) } " " (parts::task_state(task.state)) }
            (actions(browser, identity, task))
        }
        section.why aria-label="Why" {
            @for reason in &content.explanation.reasons { p { (reason_text(identity, now, reason)) } }
        }
        (summary(browser, task, now))
        @if let Some(error) = &task.error {
            section { h2 { "Last error" } pre tabindex="0" { bdi { (error) } } }
        }
        (attempts(task, now))
        section { h2 { "Payload" } (payload(browser, task, "payload", &task.payload)) }
        @if let Some(result) = &task.result {
            section { h2 { "Result" } (payload(browser, task, "result", result)) }
        }
        (output(&content.output))
        section {
            h2 { "Command line" }
            (parts::command(&format!("leasehold tasks why {}", task.id)))
            (parts::command(&format!("leasehold tasks logs {}", task.id)))
        }
    }
}

fn actions(browser: &Browser, identity: &Identity, task: &Task) -> Markup {
    let may = identity.must_be(Role::Operator).is_ok() && identity.must_reach_queue(&task.queue).is_ok();
    let link = |action: &str| browser.link(&format!("{}/{action}", view::path("tasks", &task.id)));
    let can_retry = matches!(task.state, TaskState::Failed | TaskState::Aborted | TaskState::Scheduled);
    html! {
        div.actions {
            @if may && can_retry { a.button href=(link("retry")) data-dialog { "Retry…" } }
            @if may && !task.state.is_terminal() { a.button.danger href=(link("cancel")) data-dialog { "Cancel…" } }
        }
    }
}

fn summary(browser: &Browser, task: &Task, now: Timestamp) -> Markup {
    let running = task.state == TaskState::Running;
    html! {
        section.card {
            @if running { div.row { h2 { "Lease" } (lease(now, task)) } }
            @if let Some(progress) = &task.progress {
                p {
                    @if let Some(of) = progress.of { progress value=(progress.done.min(of)) max=(of.max(1)) aria-label="progress" {} " " }
                    (progress.done) @if let Some(of) = progress.of { " of " (of) }
                    @if let Some(note) = &progress.note { ": " (parts::name(note)) }
                }
            }
            (parts::properties(&[
                ("Queue", Some(parts::name(&task.queue))),
                ("Attempt", Some(html! { (task.attempt) " of " (task.retries.attempts) })),
                ("Lock", task.lock.as_ref().map(|lock| parts::lock_link(browser, lock))),
                ("Key", task.key.as_ref().map(parts::name)),
                ("Priority", Some(html! { (task.priority.get()) })),
                ("Worker", task.worker.map(parts::worker)),
                ("Token", Some(html! { span.mono { (task.token) } })),
                ("Version", Some(html! { (task.version) })),
                ("Created", Some(parts::ago(now, task.created_at))),
                ("Due", (!task.state.is_terminal()).then(|| parts::when(now, task.run_at))),
                ("Started", task.leased_at.map(|at| parts::ago(now, at))),
                ("Finished", task.finished_at.map(|at| parts::ago(now, at))),
                ("Cancel requested", task.cancel.as_ref().map(|request| html! {
                    "by " (parts::name(&request.by)) ", " (parts::ago(now, request.at))
                    @if let Some(reason) = &request.reason { ": " (parts::name(reason)) }
                })),
            ]))
        }
    }
}

fn attempts(task: &Task, now: Timestamp) -> Markup {
    let rows = html! {
        @for event in task.events.iter().rev() {
            tr {
                td { (parts::exact(event.at)) }
                td { (event.kind.to_string().replace('_', " ")) }
                td.number { (event.attempt) }
                td.number { (event.token) }
                td { @if let Some(worker) = event.worker { (parts::worker(worker)) } }
                td { @if let Some(began) = event.leased_at { (parts::format_age(event.at.since(began))) } }
                td.wide { @if let Some(by) = &event.by { (parts::name(by)) } }
                td.wide { @if let Some(why) = &event.why { (parts::name(why)) } }
            }
        }
    };
    let columns = ["Time (UTC)", "Event", "Attempt", "Token", "Worker", "After", "By", "Reason"];
    html! {
        @if !task.events.is_empty() {
            section {
                h2 { "Attempts" }
                (parts::table("Attempts and interventions, newest first", &columns, &rows))
                @if task.state == TaskState::Running {
                    @if let Some(since) = task.leased_at { p.quiet { "Attempt " (task.attempt) " runs for " (parts::age(now, since)) "." } }
                }
            }
        }
    }
}

fn payload(browser: &Browser, task: &Task, kind: &str, payload: &Payload) -> Markup {
    let text = payload.as_str();
    let cut = cut(text, MAX_SHOWN);
    html! {
        pre tabindex="0" { bdi { (pretty(cut, text)) } }
        p.quiet {
            @if cut.len() < text.len() { "The first " (cut.len()) " of " (parts::grouped(text.len() as u64)) " bytes. " }
            a href=(browser.link(&format!("{}/{kind}.json", view::path("tasks", &task.id)))) download { "Download" }
        }
    }
}

/// Returns the text with line breaks if it is whole. Numbers are copied as text: a number with many digits
/// stays exact.
fn pretty(cut: &str, whole: &str) -> String {
    let is_whole = cut.len() == whole.len();
    if is_whole { indent(cut) } else { cut.to_owned() }
}

/// Indents JSON without parsing its values.
fn indent(json: &str) -> String {
    let (mut out, mut depth, mut in_text, mut escaped) = (String::new(), 0_usize, false, false);
    let mut letters = json.chars().peekable();
    while let Some(letter) = letters.next() {
        if in_text {
            out.push(letter);
            in_text = escaped || letter != '"';
            escaped = !escaped && letter == '\\';
            continue;
        }
        match letter {
            '{' | '[' => {
                out.push(letter);
                if letters.peek().is_some_and(|next| !matches!(next, '}' | ']')) {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                if !out.ends_with(['{', '[']) {
                    depth = depth.saturating_sub(1);
                    line(&mut out, depth);
                }
                out.push(letter);
            }
            ',' => {
                out.push(letter);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            letter if letter.is_ascii_whitespace() => {}
            letter => {
                in_text = letter == '"';
                out.push(letter);
            }
        }
    }
    out
}

fn line(out: &mut String, depth: usize) {
    out.push('\n');
    out.push_str(&"  ".repeat(depth.min(40)));
}

/// Returns the beginning of a text, at most this many bytes.
fn cut(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn output(attempts: &[AttemptOutput]) -> Markup {
    html! {
        @if !attempts.is_empty() {
            section {
                h2 { "Output" }
                @for (number, attempt) in attempts.iter().rev().enumerate() {
                    details open[number == 0] id=(format!("output-{}", attempt.token)) {
                        summary {
                            "Attempt " (attempt.attempt) ", token " (attempt.token)
                            @if !attempt.ended { ", running" }
                            @if attempt.omitted > 0 { ", " (parts::grouped(attempt.omitted)) " earlier bytes omitted" }
                        }
                        pre tabindex="0" {
                            @for line in attempt.lines.iter().skip(attempt.lines.len().saturating_sub(MAX_LINES)) {
                                span.stderr[line.stream == OutputStream::Stderr] { (line.text) } "\n"
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_indented_and_keeps_its_numbers() {
        let json = r#"{"a":[1,{"b":90071992547409931234}],"t":"x{,\"}","e":{},"l":[]}"#;
        let shown = indent(json);
        assert!(shown.contains("90071992547409931234") && shown.contains(r#""x{,\"}""#), "{shown}");
        assert_eq!(shown.replace(['\n', ' '], ""), json);
        assert!(
            shown.contains("\"e\": {}") && shown.contains("\"l\": []") && shown.lines().count() > 6,
            "{shown}"
        );
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(cut("aéb", 2), "a");
        assert_eq!(cut("aéb", 3), "aé");
        assert_eq!(cut("ab", 9), "ab");
    }
}
