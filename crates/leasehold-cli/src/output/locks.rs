//! Text output of locks: several as a table, one as a page.

use leasehold::LockStatus;
use leasehold::client::HolderStatus;
use leasehold::model::{Mode, Status};

use super::paint::Paint;
use super::program::command;
use super::table::{Table, Tint, block, plain};
use super::text::{ago, count, lines, short, shortly, visible, when};

/// Returns a table with a row for each holder; a lock without holders has a row too.
pub(crate) fn lock_table(locks: &[LockStatus], paint: Paint) -> String {
    let mut table = Table::new(&["NAME", "HOLDER", "TOKEN", "HELD", "EXPIRES", "WAITING", "MODE", "STATUS"]);
    for lock in locks {
        for holder in &lock.holders {
            table.row(tint(holder), held_row(lock, holder));
        }
        if lock.holders.is_empty() {
            table.row(Paint::dim, free_row(lock));
        }
    }
    table.paint(paint)
}

fn held_row(lock: &LockStatus, held: &HolderStatus) -> Vec<String> {
    vec![
        lock.name.to_string(),
        held.holder.to_string(),
        held.token.to_string(),
        short(lock.now.since(held.acquired_at)),
        shortly(lock.now, held.expires_at),
        lock.waiters.len().to_string(),
        mode(held),
        status(held),
    ]
}

fn free_row(lock: &LockStatus) -> Vec<String> {
    let none = || "-".to_owned();
    let status = if lock.waiters.is_empty() { "free" } else { "waited" };
    vec![
        lock.name.to_string(),
        none(),
        lock.token.to_string(),
        none(),
        none(),
        lock.waiters.len().to_string(),
        none(),
        status.to_owned(),
    ]
}

fn tint(held: &HolderStatus) -> Tint {
    match held.status {
        _ if held.stale => Paint::bad,
        Status::Active => plain,
        Status::Releasing => Paint::warning,
        Status::Released => Paint::dim,
    }
}

fn status(held: &HolderStatus) -> String {
    if held.stale { "stale".to_owned() } else { held.status.to_string() }
}

/// Returns the mode: exclusive, shared, or the number of slots.
fn mode(held: &HolderStatus) -> String {
    match held.mode {
        Mode::Exclusive if held.slots > 1 => count(held.slots.into(), "slot"),
        mode => mode.to_string(),
    }
}

/// Returns a page with all details of one lock.
pub(crate) fn lock_page(lock: &LockStatus, paint: Paint) -> String {
    let state = match (lock.holders.iter().any(|held| !held.stale), lock.is_stale) {
        (true, _) => paint.warning("held"),
        (false, true) => paint.bad(format!("stale: the next acquire, or {}, frees it", command("sweep"))),
        (false, false) => paint.good("free"),
    };
    let mut page = vec![format!("{}  {state}", paint.bold(&lock.name))];
    if lock.holders.is_empty() && lock.token.get() > 0 {
        page.push(format!("  newest token  {}", lock.token));
        if let Some(last) = &lock.last {
            let by = last.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
            let (holder, at) = (visible(last.holder.as_str()), when(lock.now, last.at));
            page.push(format!("  last lease    {holder}, {}{by} at {at}", last.status));
        }
    }
    let blocks: Vec<_> = lock.holders.iter().map(|held| holder_block(lock, held)).collect();
    let mut page = lines(page) + &blocks.join("\n");
    if !lock.waiters.is_empty() {
        page += &lines([format!("{} in the queue", lock.waiters.len())]);
        page += &lines((1..).zip(&lock.waiters).map(|(place, waiter)| {
            let patience = short(lock.now.since(waiter.since));
            let priority = match waiter.priority {
                0 => String::new(),
                priority => format!(", priority {priority}"),
            };
            format!("  {place}. {}  {}, for {patience}{priority}", waiter.holder, waiter.mode)
        }));
    }
    page
}

fn holder_block(lock: &LockStatus, held: &HolderStatus) -> String {
    let now = lock.now;
    let mut lines = vec![
        ("holder", held.holder.to_string()),
        ("status", status(held)),
        ("mode", mode(held)),
        ("token", held.token.to_string()),
        ("lease id", held.lease_id.to_string()),
        ("since", when(now, held.acquired_at)),
        ("renewed", renewed(lock, held)),
        ("expires", when(now, held.expires_at)),
    ];
    if let Some(asked) = &held.asked {
        let reason = asked.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        lines.push(("asked", format!("to stop by {}, {}{reason}", asked.by, ago(now, asked.at))));
    }
    let facts: Vec<_> = held.metadata.iter().map(|(key, value)| (visible(key), visible(value))).collect();
    lines.extend(facts.iter().map(|(key, value)| (key.as_str(), value.clone())));
    block(2, &lines)
}

fn renewed(lock: &LockStatus, held: &HolderStatus) -> String {
    match held.renewals {
        0 => "not yet".to_owned(),
        times => format!("{}, last {}", count(times, "time"), ago(lock.now, held.renewed_at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::fixture;

    #[test]
    fn a_table_has_a_row_for_each_holder_and_each_free_lock() {
        let locks = [fixture::held("deploy/prod"), fixture::shared("reports"), fixture::free("nightly")];
        insta::assert_snapshot!(lock_table(&locks, Paint::PLAIN), @"
        NAME         HOLDER         TOKEN             HELD  EXPIRES  WAITING  MODE       STATUS
        deploy/prod  ada@web1:4711  1730817105000000  12s   in 28s   2        exclusive  releasing
        reports      carol          1730817109000000  8s    in 22s   0        shared     active
        reports      dan            1730817110000000  7s    in 23s   0        shared     active
        nightly      -              1730817105000000  -     -        0        -          free
        ");
    }

    #[test]
    fn a_page_says_everything() {
        insta::assert_snapshot!(lock_page(&fixture::held("deploy/prod"), Paint::PLAIN), @r"
        deploy/prod  held
          holder    ada@web1:4711
          status    releasing
          mode      exclusive
          token     1730817105000000
          lease id  00000000-0000-7000-8000-000000000001
          since     2024-11-05T14:31:45Z (12s ago)
          renewed   1 time, last 2s ago
          expires   2024-11-05T14:32:25Z (in 28s)
          asked     to stop by bob@ci, 1s ago: hotfix
          command   work of\nada@web1:4711
        2 in the queue
          1. bob@ci:12  exclusive, for 4s
          2. eve@ci:13  shared, for 1s
        ");
        insta::assert_snapshot!(lock_page(&fixture::stale("deploy/prod"), Paint::PLAIN), @r"
        deploy/prod  stale: the next acquire, or leasehold sweep, frees it
          holder    ada@web1:4711
          status    stale
          mode      exclusive
          token     1730817105000000
          lease id  00000000-0000-7000-8000-000000000001
          since     2024-11-05T14:31:45Z (33s ago)
          renewed   not yet
          expires   2024-11-05T14:32:15Z (3s ago)
          command   work of\nada@web1:4711
        ");
        insta::assert_snapshot!(lock_page(&fixture::free("deploy/prod"), Paint::PLAIN), @"
        deploy/prod  free
          newest token  1730817105000000
        ");
    }
}
