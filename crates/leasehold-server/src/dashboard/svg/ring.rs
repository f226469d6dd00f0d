//! Deadlocks: the ring of requests and locks that wait for each other, as a picture and as sentences.

use leasehold::client::{DeadlockView, Deadlocks};
use leasehold::model::{Deadlock, RingWait, Timestamp};
use maud::{Markup, html};

use crate::access::Identity;
use crate::dashboard::data::{LockContent, OverviewContent};
use crate::dashboard::http::browser::Browser;
use crate::dashboard::live::deadlocks::KnownDeadlocks;
use crate::dashboard::pages::parts;

/// Maximum number of deadlocks on the overview.
const MAX_SHOWN: usize = 3;
/// Maximum number of waits that are drawn; the sentences name all.
const MAX_DRAWN: usize = 6;

/// Returns the deadlocks of the store.
pub(in crate::dashboard) fn of_store(browser: &Browser, now: Timestamp, content: &OverviewContent) -> Markup {
    let found = content.deadlocks.as_deadlocks().map(|search| search.found.as_slice()).unwrap_or_default();
    html! {
        (searching(&content.deadlocks))
        @for deadlock in found.iter().take(MAX_SHOWN) { (section(browser, now, deadlock)) }
        @if found.len() > MAX_SHOWN {
            p.quiet { (found.len() - MAX_SHOWN) " more deadlocks: " code { "leasehold locks deadlocks" } }
        }
    }
}

/// Returns the deadlocks that a lock is part of, if the viewer may see all their locks.
pub(in crate::dashboard) fn of_lock(
    browser: &Browser,
    identity: &Identity,
    now: Timestamp,
    content: &LockContent,
) -> Markup {
    let name = &content.explanation.status.name;
    let search = content.deadlocks.as_deadlocks();
    let is_shown = |deadlock: &&Deadlock| {
        let locks = deadlock.locks();
        locks.contains(&name) && locks.iter().all(|lock| identity.must_reach_lock(lock).is_ok())
    };
    html! {
        (searching(&content.deadlocks))
        @for deadlock in search.into_iter().flat_map(found).filter(is_shown) { (section(browser, now, deadlock)) }
    }
}

fn searching(deadlocks: &KnownDeadlocks) -> Markup {
    html! { @if deadlocks.is_searching() { p.quiet { "Searching for deadlocks …" } } }
}

fn found(search: &Deadlocks) -> impl Iterator<Item = &Deadlock> {
    search.found.iter()
}

fn section(browser: &Browser, now: Timestamp, deadlock: &Deadlock) -> Markup {
    let commands = DeadlockView::new(deadlock, "leasehold").commands;
    let (avoiding, ending): (Vec<_>, Vec<_>) =
        commands.into_iter().partition(|command| command.to == "avoid");
    html! {
        section.card.deadlock aria-label="Deadlock" {
            h2 { (parts::badge("bad", "deadlock")) " These requests wait for each other" }
            div.around {
                (drawing(deadlock))
                div {
                    ul { @for wait in &deadlock.waits { li { (sentence(browser, now, wait)) } } }
                    p.quiet { "A forced release of one of these leases ends the deadlock:" }
                    @for command in &ending { (parts::command(&command.command)) }
                    @for command in &avoiding {
                        p.quiet { "A request for all these locks at once avoids it:" }
                        (parts::command(&command.command))
                    }
                }
            }
        }
    }
}

/// Returns a wait as a sentence with links to its locks.
fn sentence(browser: &Browser, now: Timestamp, wait: &RingWait) -> Markup {
    let (waiter, lock) = (parts::name(&wait.waiter), parts::lock_link(browser, &wait.lock));
    let elapsed = parts::age(now, wait.since);
    html! {
        @match &wait.holds {
            None => { (waiter) " waits for " (lock) ", before it in the queue, for " (elapsed) "." },
            Some(held) if held.holder == wait.waiter => {
                (waiter) " holds " (parts::lock_link(browser, &held.lock)) " and waits for " (lock) ", for " (elapsed) "."
            },
            Some(held) => {
                (parts::name(&held.holder)) " holds " (parts::lock_link(browser, &held.lock)) ", and " (waiter)
                " within it waits for " (lock) ", for " (elapsed) "."
            },
        }
    }
}

/// Entry of the ring: a request or a lock, and what relates it to the next entry.
struct Entry<'a> {
    name: &'a str,
    is_lock: bool,
    next: &'static str,
}

/// Returns the ring: each request points to the lock that it waits for, and each lock to the request that
/// was made while it is held. The entries go down on the left and up on the right. The sentences say the
/// same, so a screen reader skips the drawing.
fn drawing(deadlock: &Deadlock) -> Markup {
    let waits = &deadlock.waits;
    if waits.len() > MAX_DRAWN {
        return html! {};
    }
    let entries: Vec<Entry<'_>> = waits
        .iter()
        .enumerate()
        .flat_map(|(number, wait)| {
            let next = match &waits[(number + 1) % waits.len()] {
                RingWait { holds: None, .. } => "behind",
                RingWait { holds: Some(held), waiter, .. } if held.holder == *waiter => "held by",
                _ => "held, within it",
            };
            [
                Entry { name: wait.waiter.as_str(), is_lock: false, next: "waits for" },
                Entry { name: wait.lock.as_str(), is_lock: true, next },
            ]
        })
        .collect();
    let (rows, last) = (waits.len(), entries.len() - 1);
    html! {
        div.ring aria-hidden="true" {
            @for row in 0..rows {
                @let (left, right) = (&entries[row], &entries[last - row]);
                (drawn(left))
                div.edge {
                    @if row == 0 { span { "← " (right.next) } }
                    @if row == rows - 1 { span { (left.next) " →" } }
                }
                (drawn(right))
                @if row < rows - 1 {
                    div.edge { "↓ " (left.next) }
                    div {}
                    div.edge { "↑ " (entries[last - row - 1].next) }
                }
            }
        }
    }
}

fn drawn(entry: &Entry<'_>) -> Markup {
    html! {
        div.entry.lock[entry.is_lock] {
            span.quiet { @if entry.is_lock { "lock" } @else { "request" } }
            (parts::name(entry.name))
        }
    }
}
