//! List of locks.

use leasehold::LockStatus;
use leasehold::client::LockExplanation;
use leasehold::model::{LockReason, Status, Timestamp};
use maud::{Markup, html};

use crate::dashboard::http::browser::Browser;
use crate::dashboard::pages::parts;
use crate::dashboard::view::{LockTab, LocksView, View};

/// Maximum number of characters of a purpose in the table.
const MAX_WHY: usize = 60;

/// Returns the page.
pub(in crate::dashboard) fn page(
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
                    "No lock is in this state now. Take one with " code { "leasehold run NAME -- COMMAND" } "."
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
        tr id=(format!("lock-{}", crate::dashboard::view::encoded(lock.name.as_str()))) {
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
                (parts::lease_bar(now, held.expires_at, std::time::Duration::from_secs_f64(held.ttl_seconds)))
            } }
            td.number { @if !lock.waiters.is_empty() { (parts::grouped(lock.waiters.len() as u64)) } }
            td.wide.quiet { (why(explanation, now)) }
        }
    }
}

/// Returns the state of a lock as a word with a sign.
pub(in crate::dashboard) fn state(lock: &LockStatus) -> Markup {
    let held = lock.holders.iter().find(|held| !held.stale);
    match held {
        Some(held) if held.status == Status::Releasing => parts::badge("warn", "asked to release"),
        Some(held) if held.status == Status::Released => parts::badge("wait", "retained"),
        Some(_) => parts::badge("busy", "held"),
        None if !lock.holders.is_empty() => parts::badge("bad", "stale"),
        None if !lock.waiters.is_empty() => parts::badge("wait", "waited for"),
        None => parts::badge("idle", "free"),
    }
}

/// Returns what the other columns do not say, in a few words: why the holder may be gone, what the lock is
/// held for, and who is next. The page of the lock has whole sentences.
fn why(lock: &LockExplanation, now: Timestamp) -> Markup {
    let first = |fact: fn(&LockReason, Timestamp) -> Option<Markup>| {
        lock.reasons.iter().find_map(|reason| fact(reason, now))
    };
    let facts: Vec<Markup> = [
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
    html! { @for (number, fact) in facts.iter().enumerate() { @if number > 0 { " · " } (fact) } }
}
