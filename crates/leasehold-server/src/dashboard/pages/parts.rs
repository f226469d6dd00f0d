//! Parts that several pages use: names, times, durations, bars, states, tables.

use std::fmt::Display;
use std::time::Duration;

use leasehold::model::{
    LockName, LockReason, TaskId, TaskState, TimeWriter, Timestamp, WorkerId, format_duration,
};
use maud::{Markup, html};

use crate::dashboard::http::browser::Browser;
use crate::dashboard::view::{self, lock_path};

/// Returns text that callers chose. Its direction does not affect the text around it, and it is isolated.
pub(in crate::dashboard) fn name(text: &(impl Display + ?Sized)) -> Markup {
    html! { bdi.name { (text.to_string()) } }
}

/// Returns the beginning of a text that callers chose, and the whole text as its tooltip.
pub(in crate::dashboard) fn cut(text: &str, max: usize) -> Markup {
    if text.chars().count() <= max {
        return name(text);
    }
    let begin: String = text.chars().take(max.saturating_sub(1)).collect();
    html! { span title=(text) { (name(&format!("{}…", begin.trim_end()))) } }
}

/// Returns a link to a lock.
pub(in crate::dashboard) fn lock_link(browser: &Browser, lock: &LockName) -> Markup {
    html! { a.mono href=(browser.link(&lock_path(lock))) title=(lock) { (name(lock)) } }
}

/// Returns a link to a task, with the last part of its id: ids of one moment begin alike.
pub(in crate::dashboard) fn task_link(browser: &Browser, id: TaskId) -> Markup {
    let text = id.to_string();
    html! { a.mono.id href=(browser.link(&view::path("tasks", &id))) title=(text) { "…" (short(&text)) } }
}

/// Returns the last characters of an id.
pub(in crate::dashboard) fn short(id: &str) -> &str {
    id.get(id.len().saturating_sub(12)..).unwrap_or(id)
}

/// Returns the short id of a worker.
pub(in crate::dashboard) fn worker(id: WorkerId) -> Markup {
    let text = id.to_string();
    html! { span.mono title=(text) { "…" (short(&text)) } }
}

/// Returns a point of time in the past as the time since then.
pub(in crate::dashboard) fn ago(now: Timestamp, at: Timestamp) -> Markup {
    let exact = at.to_string();
    html! {
        time datetime=(exact) title=(exact) data-since=(at.as_micros()) { (format_age(now.since(at))) } " ago"
    }
}

/// Returns the time since a point of time, such as the age of a lease.
pub(in crate::dashboard) fn age(now: Timestamp, since: Timestamp) -> Markup {
    let exact = since.to_string();
    html! { time datetime=(exact) title=(exact) data-since=(since.as_micros()) { (format_age(now.since(since))) } }
}

/// Returns a point of time that may be in the future: `in 5m`, or `5m ago`.
pub(in crate::dashboard) fn when(now: Timestamp, at: Timestamp) -> Markup {
    if at <= now {
        return ago(now, at);
    }
    let exact = at.to_string();
    html! { "in " time datetime=(exact) title=(exact) data-until=(at.as_micros()) { (format_age(at.since(now))) } }
}

/// Returns the exact time, for tables of events.
pub(in crate::dashboard) fn exact(at: Timestamp) -> Markup {
    let text = at.to_string();
    let shown = text.replace('T', " ").replace('Z', "");
    html! { time.mono datetime=(text) title=(format!("{at:#}")) { (shown) } }
}

/// Formats a duration in whole seconds, as the script of the pages does.
pub(in crate::dashboard) fn format_age(age: Duration) -> String {
    if age < Duration::from_secs(1) {
        "0s".to_owned()
    } else {
        format_duration(Duration::from_secs(age.as_secs()))
    }
}

/// Returns the remaining time of a lease as a bar and as text. Both are computed from the store's clock.
pub(in crate::dashboard) fn lease_bar(now: Timestamp, until: Timestamp, ttl: Duration) -> Markup {
    let left = until.since(now);
    let (value, max) = (left.as_millis().min(ttl.as_millis()), ttl.as_millis().max(1));
    let exact = until.to_string();
    html! {
        span.lease {
            progress value=(value) max=(max) aria-label="remaining time of the lease"
                data-until=(until.as_micros()) data-ttl=(ttl.as_millis()) {}
            @if left.is_zero() {
                span.left title=(exact) { "expired" }
            } @else {
                span.left title=(exact) { span data-until=(until.as_micros()) { (format_age(left)) } " left" }
            }
        }
    }
}

/// Encloses times within the text of a sentence, until they are replaced by elements.
const TIME_MARK: char = '\u{1}';

/// Returns a reason of a lock as a sentence whose times are kept up to date on the page.
pub(in crate::dashboard) fn sentence(now: Timestamp, reason: &LockReason) -> Markup {
    let mark = |kind: char, at: Timestamp| format!("{TIME_MARK}{kind}{}{TIME_MARK}", at.as_micros());
    let text = reason.text_with(TimeWriter { when: &|at| mark('@', at), elapsed: &|since| mark('-', since) });
    html! { @for part in text.split(TIME_MARK) { (part_of_sentence(now, part)) } }
}

fn part_of_sentence(now: Timestamp, part: &str) -> Markup {
    let time = |digits: &str| digits.parse().ok().map(Timestamp::from_micros);
    if let Some(at) = part.strip_prefix('@').and_then(time) {
        html! { (exact(at)) " (" (when(now, at)) ")" }
    } else if let Some(since) = part.strip_prefix('-').and_then(time) {
        age(now, since)
    } else {
        html! { (part) }
    }
}

/// Returns a state as a word with a sign, so that the colour is never the only difference.
pub(in crate::dashboard) fn badge(kind: &str, text: &str) -> Markup {
    let sign = match kind {
        "good" => "●",
        "busy" => "▶",
        "wait" => "◔",
        "bad" => "✕",
        "warn" => "!",
        _ => "○",
    };
    html! { span.badge data-kind=(kind) { span aria-hidden="true" { (sign) } " " (text) } }
}

/// Returns the state of a task.
pub(in crate::dashboard) fn task_state(state: TaskState) -> Markup {
    let kind = match state {
        TaskState::Running => "busy",
        TaskState::Succeeded => "good",
        TaskState::Failed => "bad",
        TaskState::Aborted => "warn",
        TaskState::Scheduled | TaskState::Blocked => "wait",
        TaskState::Pending => "idle",
    };
    badge(kind, state.as_str())
}

/// Returns a table in a frame that scrolls on narrow screens.
pub(in crate::dashboard) fn table(caption: &str, columns: &[&str], rows: &Markup) -> Markup {
    html! {
        div.table tabindex="0" role="region" aria-label=(caption) {
            table {
                caption.quiet { (caption) }
                thead { tr { @for column in columns { th scope="col" { (column) } } } }
                tbody { (rows) }
            }
        }
    }
}

/// Returns the message for an empty list.
pub(in crate::dashboard) fn empty(title: &str, hint: &Markup) -> Markup {
    html! { div.empty { p.title { (title) } p { (hint) } } }
}

/// Returns the links to the first and the next page.
pub(in crate::dashboard) fn pager(first: Option<String>, next: Option<String>) -> Markup {
    html! {
        @if first.is_some() || next.is_some() {
            nav.pager aria-label="Pages" {
                @if let Some(first) = first { a.button href=(first) { "← First page" } }
                @if let Some(next) = next { a.button href=(next) rel="next" { "Next page →" } }
            }
        }
    }
}

/// Returns tabs. Each has its address, its label, a count and whether it is selected.
pub(in crate::dashboard) fn tabs(label: &str, all: &[(String, String, Option<u64>, bool)]) -> Markup {
    html! {
        nav.tabs aria-label=(label) {
            @for (address, label, count, selected) in all {
                a href=(address) aria-current=[selected.then_some("page")] {
                    (label)
                    @if let Some(count) = count { " " span.count { (grouped(*count)) } }
                }
            }
        }
    }
}

/// Formats a number with a thin space between groups of three digits.
pub(in crate::dashboard) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Returns a list of properties; those without a value are omitted.
pub(in crate::dashboard) fn properties(all: &[(&str, Option<Markup>)]) -> Markup {
    html! {
        dl.properties {
            @for (label, value) in all {
                @if let Some(value) = value { div { dt { (label) } dd { (value) } } }
            }
        }
    }
}

/// Returns a command line that the viewer can copy.
pub(in crate::dashboard) fn command(text: &str) -> Markup {
    html! {
        div.command {
            code dir="ltr" { (text) }
            button.quiet type="button" data-copy=(text) hidden { "Copy" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_isolated() {
        let markup = name("<img src=x onerror=alert(1)>\"'&").into_string();
        assert_eq!(markup, "<bdi class=\"name\">&lt;img src=x onerror=alert(1)&gt;&quot;'&amp;</bdi>");
    }

    #[test]
    fn numbers_have_groups() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
    }
}
