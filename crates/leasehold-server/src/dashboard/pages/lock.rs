//! One lock: its holders, its queue, its timeline and its events.

use std::time::Duration;

use leasehold::LockStatus;
use leasehold::client::{EventView, LockExplanation};
use leasehold::model::{LockName, LockReason, Timestamp, lock_command};
use maud::{Markup, html};

use super::locks::state;
use crate::access::{Identity, Role};
use crate::dashboard::data::LockContent;
use crate::dashboard::http::browser::Browser;
use crate::dashboard::pages::parts;
use crate::dashboard::svg::ring;
use crate::dashboard::svg::timeline::timeline;
use crate::dashboard::view::{View, lock_path};

/// Returns the page.
pub(in crate::dashboard) fn page(
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
        (why(explanation, now))
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
fn why(lock: &LockExplanation, now: Timestamp) -> Markup {
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
                    ("Release asked", held.release_request.as_ref().map(|asked| html! {
                        "by " (parts::name(&asked.by)) ", " (parts::ago(now, asked.at))
                        @if let Some(reason) = &asked.reason { ": " (parts::name(reason)) }
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

/// Maximum number of waiters on the page.
const MAX_WAITERS: usize = 100;

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
                @if with_lock { td { (lock(browser, &event.lock)) } }
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

fn lock(browser: &Browser, name: &LockName) -> Markup {
    parts::lock_link(browser, name)
}

fn after(event: &EventView) -> Markup {
    html! { @if event.after_seconds > 0.0 {
        (leasehold::model::format_duration(Duration::from_secs_f64(event.after_seconds)))
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
