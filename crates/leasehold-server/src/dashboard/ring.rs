//! Deadlocks: the ring of holders and locks that wait for each other, as SVG and as sentences.

use std::f64::consts::TAU;

use leasehold::client::{DeadlockView, Deadlocks};
use leasehold::model::{Deadlock, Timestamp};
use maud::{Markup, html};

use super::browser::Browser;
use super::data::{LockContent, OverviewContent};
use super::parts;
use crate::access::Identity;

/// Maximum number of deadlocks on the overview.
const MAX_SHOWN: usize = 3;
/// Maximum number of waits that are drawn; the sentences name all.
const MAX_DRAWN: usize = 6;
/// Maximum length of a name in the drawing; the sentences have the whole name.
const MAX_NAME: usize = 20;

/// Width of the drawing in its own units.
const WIDTH: f64 = 720.0;
/// Half of the size of one entry of the ring.
const ENTRY: (f64, f64) = (84.0, 15.0);

/// Returns the deadlocks of the store.
pub(super) fn of_store(browser: &Browser, now: Timestamp, content: &OverviewContent) -> Markup {
    let found = content.deadlocks.as_deref().map(|search| search.found.as_slice()).unwrap_or_default();
    html! {
        @for deadlock in found.iter().take(MAX_SHOWN) { (section(browser, now, deadlock)) }
        @if found.len() > MAX_SHOWN {
            p.quiet { (found.len() - MAX_SHOWN) " more deadlocks: " code { "leasehold locks deadlocks" } }
        }
    }
}

/// Returns the deadlocks that a lock is part of, if the viewer may see all their locks.
pub(super) fn of_lock(
    browser: &Browser,
    identity: &Identity,
    now: Timestamp,
    content: &LockContent,
) -> Markup {
    let name = &content.explanation.status.name;
    let search = content.deadlocks.as_deref();
    let is_shown = |deadlock: &&Deadlock| {
        let locks = deadlock.locks();
        locks.contains(&name) && locks.iter().all(|lock| identity.must_reach_lock(lock).is_ok())
    };
    html! {
        @for deadlock in search.into_iter().flat_map(found).filter(is_shown) { (section(browser, now, deadlock)) }
    }
}

fn found(search: &Deadlocks) -> impl Iterator<Item = &Deadlock> {
    search.found.iter()
}

fn section(browser: &Browser, now: Timestamp, deadlock: &Deadlock) -> Markup {
    let view = DeadlockView::new(deadlock, "leasehold");
    html! {
        section.card.deadlock aria-label="Deadlock" {
            h2 { (parts::badge("bad", "deadlock")) " These requests wait for each other" }
            (drawing(deadlock))
            ul {
                @for wait in &deadlock.waits {
                    li {
                        (wait.to_string()) ", for " (parts::age(now, wait.since)) ". "
                        (parts::lock_link(browser, &wait.lock))
                    }
                }
            }
            @for command in &view.commands { p.quiet { "To " (command.to) " it:" } (parts::command(&command.command)) }
        }
    }
}

/// Entry of the ring.
struct Entry {
    name: String,
    is_lock: bool,
}

/// Returns the ring: each request points to the lock that it waits for, and each lock to the request that
/// was made while it is held.
fn drawing(deadlock: &Deadlock) -> Markup {
    if deadlock.waits.len() > MAX_DRAWN {
        return html! {};
    }
    let entries: Vec<Entry> = deadlock
        .waits
        .iter()
        .flat_map(|wait| {
            let request = Entry { name: shortened(wait.waiter.as_str()), is_lock: false };
            [request, Entry { name: shortened(wait.lock.as_str()), is_lock: true }]
        })
        .collect();
    #[expect(clippy::cast_precision_loss, reason = "at most 2 * MAX_DRAWN")]
    let count = entries.len() as f64;
    let (wide, high) = (WIDTH / 2.0 - ENTRY.0 - 4.0, 30.0 + 14.0 * count);
    let (middle, height) = ((WIDTH / 2.0, high + ENTRY.1 + 4.0), 2.0 * (high + ENTRY.1 + 4.0));
    let place = |number: usize| {
        #[expect(clippy::cast_precision_loss, reason = "at most 2 * MAX_DRAWN")]
        let angle = (number as f64 / count - 0.25) * TAU;
        ((middle.0 + wide * angle.cos()).round(), (middle.1 + high * angle.sin()).round())
    };
    html! {
        svg.ring viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(deadlock) {
            defs {
                marker #ring-arrow viewBox="0 0 10 10" refX="5" refY="5" markerWidth="9" markerHeight="9" orient="auto" {
                    path d="M0 0 10 5 0 10z" {}
                }
            }
            @for number in 0..entries.len() {
                @let (from, to) = (place(number), place(number + 1));
                @let half = ((from.0 + to.0) / 2.0, (from.1 + to.1) / 2.0);
                polyline points=(format!("{},{} {},{} {},{}", from.0, from.1, half.0, half.1, to.0, to.1))
                    marker-mid="url(#ring-arrow)" {}
            }
            @for (number, entry) in entries.iter().enumerate() {
                @let (x, y) = place(number);
                rect.lock[entry.is_lock] x=(x - ENTRY.0) y=(y - ENTRY.1) width=(2.0 * ENTRY.0) height=(2.0 * ENTRY.1) rx="6" {}
                text x=(x) y=(y + 5.0) { (entry.name) }
            }
        }
    }
}

fn shortened(name: &str) -> String {
    if name.chars().count() <= MAX_NAME {
        return name.to_owned();
    }
    let begin: String = name.chars().take(MAX_NAME - 1).collect();
    format!("{begin}…")
}
