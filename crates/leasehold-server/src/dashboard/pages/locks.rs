//! Locks: the list, and one lock with its queue, its timeline and its events.

use std::time::Duration;

use leasehold::LockStatus;
use leasehold::client::{EventView, LockExplanation};
use leasehold::model::{LeaseStatus, LockReason, Timestamp, format_duration, lock_command};
use maud::{Markup, html};

use crate::access::{Identity, Role};
use crate::dashboard::data::LockContent;
use crate::dashboard::http::browser::Browser;
use crate::dashboard::pages::parts;
use crate::dashboard::svg::ring;
use crate::dashboard::svg::timeline::timeline;
use crate::dashboard::view::{LockTab, LocksView, View, encoded, lock_path};

/// Maximum number of characters of a purpose in the table.
const MAX_WHY: usize = 60;
/// Maximum number of waiters on the page.
const MAX_WAITERS: usize = 100;

/// Returns the list.
pub(in crate::dashboard) fn list(
    browser: &Browser,
    view: &LocksView,
    now: Timestamp,
    (locks, next): (&[LockExplanation], Option<&str>),
) -> Markup {
    let link = |view: LocksView| browser.link(&View::Locks(view).address());
    let tab = |state: Option<LockTab>, label: &str| {
        let address = link(LocksView { state, after: None, ..view.clone() });
        (address, label.to_owned(), None, view.state == state)
    };
    let mut tabs = vec![tab(None, "In use")];
    tabs.extend(LockTab::ALL.map(|state| tab(Some(state), state.words().1)));
    html! {
        div.head { h1 { "Locks" } (filter(browser, view)) }
        (parts::tabs("State of the locks", &tabs))
        @if locks.is_empty() {
            (parts::empty("No locks here", &html! {
                @if view.filter().is_empty() {
                    "No lock is in this state now. Acquire one with " code { "leasehold run NAME -- COMMAND" } "."
                } @else { "No lock matches the filter." }
            }))
        } @else {
            (table(browser, locks, now))
        }
        (parts::pager(
            view.after.as_ref().map(|_| link(LocksView { after: None, ..view.clone() })),
            next.map(|next| link(LocksView { after: Some(next.to_owned()), ..view.clone() })),
        ))
    }
}

fn filter(browser: &Browser, view: &LocksView) -> Markup {
    html! {
        form.filter method="get" action=(browser.link("/locks")) role="search" {
            label.hidden for="filter" { "Filter: the beginning of a name, or name:… holder:… state:…" }
            input #filter type="search" name="q" value=(view.filter()) placeholder="Filter: name, holder:ci, state:held"
                spellcheck="false" autocomplete="off";
            @if let Some(tab) = view.state { input type="hidden" name="state" value=(tab.words().0); }
            button type="submit" { "Filter" }
        }
    }
}

/// Returns the table of locks.
pub(in crate::dashboard) fn table(browser: &Browser, locks: &[LockExplanation], now: Timestamp) -> Markup {
    let rows = html! { @for lock in locks { (row(browser, lock, now)) } };
    parts::table("Locks", &["Name", "State", "Holder", "Token", "Held for", "Lease", "Waiting", "Why"], &rows)
}

fn row(browser: &Browser, explanation: &LockExplanation, now: Timestamp) -> Markup {
    let lock = &explanation.status;
    let held = lock.holders.iter().find(|held| !held.stale).or(lock.holders.first());
    html! {
        tr id=(format!("lock-{}", encoded(lock.name.as_str()))) {
            th scope="row" { (parts::lock_link(browser, &lock.name)) }
            td { (state(lock)) }
            td.wide {
                @if let Some(held) = held {
                    (parts::name(&held.holder))
                    @if lock.holders.len() > 1 { " " span.quiet { "+" (lock.holders.len() - 1) } }
                }
            }
            td.number { (lock.token) }
            td { @if let Some(held) = held { (parts::age(now, held.acquired_at)) } }
            td { @if let Some(held) = held {
                (parts::lease_bar(now, held.expires_at, Duration::from_secs_f64(held.ttl_seconds)))
            } }
            td.number { @if !lock.waiters.is_empty() { (parts::grouped(lock.waiters.len() as u64)) } }
            td.wide.quiet { (summary(explanation, now)) }
        }
    }
}

/// Returns the state of a lock as a word with a sign.
fn state(lock: &LockStatus) -> Markup {
    let held = lock.holders.iter().find(|held| !held.stale);
    match held {
        Some(held) if held.status == LeaseStatus::Releasing => parts::badge("warn", "release requested"),
        Some(held) if held.status == LeaseStatus::Released => parts::badge("wait", "retained"),
        Some(_) => parts::badge("busy", "held"),
        None if !lock.holders.is_empty() => parts::badge("bad", "stale"),
        None if !lock.waiters.is_empty() => parts::badge("wait", "waited for"),
        None => parts::badge("idle", "free"),
    }
}

/// Returns what the other columns do not say, in a few words: whether the holder may be dead, what the
/// lock is held for, and who is next. The page of the lock has whole sentences.
fn summary(lock: &LockExplanation, now: Timestamp) -> Markup {
    let first = |note: fn(&LockReason, Timestamp) -> Option<Markup>| {
        lock.reasons.iter().find_map(|reason| note(reason, now))
    };
    let notes: Vec<Markup> = [
        first(|reason, _| match reason {
            LockReason::ProcessExited { .. } => Some(html! { "its process has exited" }),
            _ => None,
        }),
        first(|reason, now| match reason {
            LockReason::Renewals { late: true, last, .. } => {
                Some(html! { "its renewal is late: the last was " (parts::ago(now, *last)) })
            }
            _ => None,
        }),
        first(|reason, _| match reason {
            LockReason::Purpose { command, reason, .. } => {
                reason.as_ref().or(command.as_ref()).map(|text| parts::cut(text, MAX_WHY))
            }
            _ => None,
        }),
        first(|reason, now| match reason {
            LockReason::Waits { position: 1, holder, since, .. } => {
                Some(html! { "next: " (parts::name(holder)) ", for " (parts::age(now, *since)) })
            }
            _ => None,
        }),
    ]
    .into_iter()
    .flatten()
    .collect();
    html! { @for (number, note) in notes.iter().enumerate() { @if number > 0 { " · " } (note) } }
}

/// Returns the page of one lock: its holders, its queue, its timeline and its events.
pub(in crate::dashboard) fn one(
    browser: &Browser,
    identity: &Identity,
    now: Timestamp,
    lock: &LockContent,
) -> Markup {
    let (explanation, status) = (&lock.explanation, &lock.explanation.status);
    html! {
        nav.crumbs aria-label="Path" { a href=(browser.link("/locks")) { "Locks" } }
        div.head {
            h1 { (parts::name(&status.name)) " " (state(status)) }
            (actions(browser, identity, status))
        }
        (ring::of_lock(browser, identity, now, lock))
        (explanation_text(explanation, now))
        (holders(status, now))
        (queue(explanation, now))
        (timeline(status, &lock.recent, now))
        (commands(explanation))
        section {
            h2 { "Events" }
            (events_table(browser, "Events of the lock", &lock.events, false))
            (parts::pager(None, lock.next.as_ref().map(|next| {
                browser.link(&View::Lock { name: status.name.clone(), before: Some(next.clone()) }.address())
            })))
        }
    }
}

fn actions(browser: &Browser, identity: &Identity, status: &LockStatus) -> Markup {
    let may = |role: Role| identity.must_be(role).is_ok() && identity.must_reach_lock(&status.name).is_ok();
    let link = |action: &str| browser.link(&format!("{}/{action}", lock_path(&status.name)));
    html! {
        div.actions {
            @if !status.holders.is_empty() && may(Role::Operator) {
                a.button href=(link("ask")) data-dialog { "Ask to release…" }
            }
            @if !status.holders.is_empty() && may(Role::Admin) {
                a.button.danger href=(link("force-release")) data-dialog { "Force release…" }
            }
        }
    }
}

/// Explains who holds the lock, who waits, and what would free it. The queue has a table of its own.
fn explanation_text(lock: &LockExplanation, now: Timestamp) -> Markup {
    let is_shown =
        |reason: &&LockReason| !matches!(reason, LockReason::Waits { position, .. } if *position > 1);
    html! {
        section.why aria-label="Why" {
            @for reason in lock.reasons.iter().filter(is_shown) { p { (parts::sentence(now, reason)) } }
        }
    }
}

/// Returns commands for a terminal: those that help, and those that tell more.
fn commands(lock: &LockExplanation) -> Markup {
    let name = lock.status.name.as_str();
    html! {
        section {
            h2 { "Command line" }
            (parts::command(&lock_command("leasehold locks why", name, "")))
            (parts::command(&lock_command("leasehold history", name, "")))
            @for remedy in &lock.remedies { (parts::command(&remedy.command("leasehold", &lock.status.name))) }
        }
    }
}

fn holders(status: &LockStatus, now: Timestamp) -> Markup {
    html! {
        @for held in &status.holders {
            section.card {
                div.row {
                    h2 { (parts::name(&held.holder)) }
                    (parts::lease_bar(now, held.expires_at, Duration::from_secs_f64(held.ttl_seconds)))
                }
                (parts::properties(&[
                    ("Token", Some(html! { span.mono { (held.token) } })),
                    ("Held for", Some(parts::age(now, held.acquired_at))),
                    ("Renewed", Some(html! { (parts::ago(now, held.renewed_at)) " (" (held.renewals) " times)" })),
                    ("TTL", Some(html! { (parts::format_age(Duration::from_secs_f64(held.ttl_seconds))) })),
                    ("Mode", Some(html! { (format!("{:?}", held.mode).to_lowercase())
                        @if held.slots > 1 { ", " (held.slots) " slots" } })),
                    ("Lease", Some(html! { span.mono { (held.lease_ref) } })),
                    ("Release requested", held.release_request.as_ref().map(|request| html! {
                        "by " (parts::name(&request.by)) ", " (parts::ago(now, request.at))
                        @if let Some(reason) = &request.reason { ": " (parts::name(reason)) }
                    })),
                ]))
                @if !held.metadata.is_empty() {
                    details {
                        summary { "Metadata" }
                        dl.properties { @for (key, value) in held.metadata.iter() {
                            div { dt { (parts::name(key)) } dd { (parts::name(value)) } }
                        } }
                    }
                }
            }
        }
    }
}

fn queue(lock: &LockExplanation, now: Timestamp) -> Markup {
    let status = &lock.status;
    let behind = |number: usize| {
        lock.reasons.iter().find_map(|reason| match reason {
            LockReason::Waits { position, behind, .. } if *position == number => behind.first(),
            _ => None,
        })
    };
    let rows = html! {
        @for (number, waiter) in status.waiters.iter().take(MAX_WAITERS).enumerate() {
            tr id=(format!("waiter-{}", waiter.lease_id)) {
                td.number { (number + 1) }
                th scope="row" { (parts::name(&waiter.holder)) }
                td { (parts::age(now, waiter.since)) }
                td.wide { @if let Some(behind) = behind(number + 1) { (parts::name(behind)) } }
                td.number { (waiter.priority) }
                td { (format!("{:?}", waiter.mode).to_lowercase()) }
            }
        }
    };
    html! {
        @if !status.waiters.is_empty() {
            section {
                h2 { "Queue" }
                (parts::table("Waiters, first in line first", &["#", "Waiter", "Waiting", "Behind", "Priority", "Mode"], &rows))
                @if status.waiters.len() > MAX_WAITERS { p.quiet { (status.waiters.len() - MAX_WAITERS) " more" } }
            }
        }
    }
}

/// Returns a table of events, newest first; with the lock of each event if the page is about many locks.
pub(in crate::dashboard) fn events_table(
    browser: &Browser,
    caption: &str,
    events: &[EventView],
    with_lock: bool,
) -> Markup {
    let rows = html! {
        @for event in events {
            tr {
                td { (parts::exact(event.at)) }
                td { (event_kind(&event.kind.to_string())) }
                @if with_lock { td { (parts::lock_link(browser, &event.lock)) } }
                td.wide { (parts::name(&event.holder)) }
                td.number { (event.token) }
                td { (after(event)) }
                td.wide { @if let Some(by) = &event.by { (parts::name(by)) } }
                td.wide { @if let Some(reason) = &event.reason { (parts::name(reason)) } }
            }
        }
    };
    let columns: &[&str] = if with_lock {
        &["Time (UTC)", "Event", "Lock", "Holder", "Token", "After", "By", "Reason"]
    } else {
        &["Time (UTC)", "Event", "Holder", "Token", "After", "By", "Reason"]
    };
    html! {
        @if events.is_empty() { (parts::empty("No events", &html! { "The history is empty." })) }
        @else { (parts::table(caption, columns, &rows)) }
    }
}

fn after(event: &EventView) -> Markup {
    html! { @if event.after_seconds > 0.0 {
        (format_duration(Duration::from_secs_f64(event.after_seconds)))
    } }
}

fn event_kind(kind: &str) -> Markup {
    let sign = match kind {
        "acquired" => "busy",
        "released" => "good",
        "expired" | "forced" => "bad",
        "stolen" | "release_requested" => "warn",
        "queued" => "wait",
        _ => "idle",
    };
    parts::badge(sign, &kind.replace('_', " "))
}
