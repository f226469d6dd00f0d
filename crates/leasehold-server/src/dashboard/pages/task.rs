//! One task: why it does not run, its attempts, its payload, result and output.

use leasehold::client::{AttemptOutput, OutputStream};
use leasehold::model::{Payload, Task, TaskState, Timestamp};
use maud::{Markup, html};

use super::tasks::{lease, text};
use crate::access::{Identity, Role};
use crate::dashboard::data::TaskContent;
use crate::dashboard::http::browser::Browser;
use crate::dashboard::pages::parts;
use crate::dashboard::view::{self, TasksView, View};

/// Maximum size of a payload on the page; the whole payload can be downloaded.
const MAX_SHOWN: usize = 8 * 1024;
/// Maximum number of lines of output of one attempt on the page.
const MAX_LINES: usize = 500;

/// Returns the page.
pub(in crate::dashboard) fn page(
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
            @for reason in &content.explanation.reasons { p { (text(identity, now, reason)) } }
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
                ("Cancel requested", task.cancel.as_ref().map(|asked| html! {
                    "by " (parts::name(&asked.by)) ", " (parts::ago(now, asked.at))
                    @if let Some(reason) = &asked.reason { ": " (parts::name(reason)) }
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
