//! Text and JSON output of locks and leases.

use leasehold::LockStatus;
use leasehold::client::HolderStatus;
use leasehold::model::{Lease, LeaseStatus, LockName, Mode};
use serde::Serialize;

use super::hints::command;
use super::table::{Column, Tint, plain, table};
use super::text::{Layout, Style, block, count, lines, visible};
use super::times::{ago, short, shortly, when};

/// Returns a table with a row for each holder; a lock without holders has a row too.
pub(crate) fn lock_table(locks: &[LockStatus], style: Style) -> String {
    let columns = [
        Column::new("NAME").shrinks_to(16),
        Column::new("HOLDER").shrinks_to(14),
        Column::new("TOKEN").rank(5),
        Column::new("HELD"),
        Column::new("EXPIRES").rank(3),
        Column::new("WAITING"),
        Column::new("MODE").rank(4),
        Column::new("STATUS"),
        Column::new("FOR").rank(2).shrinks_to(12).extra(),
    ];
    let rows = locks.iter().flat_map(|lock| {
        let free = lock.holders.is_empty().then(|| (Style::dim as Tint, free_row(lock)));
        lock.holders.iter().map(|held| (tint(held), held_row(lock, held))).chain(free)
    });
    table(&columns, rows, style)
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
        purpose(held),
    ]
}

/// Returns the reason that the holder gave, or else its command.
fn purpose(held: &HolderStatus) -> String {
    // A lease without a process has this program as its command.
    let command = held.metadata.get("command").filter(|command| *command != "leasehold");
    held.metadata.get("reason").or(command).unwrap_or_default().to_owned()
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
        String::new(),
    ]
}

fn tint(held: &HolderStatus) -> Tint {
    match held.status {
        _ if held.stale => Style::bad,
        LeaseStatus::Active => plain,
        LeaseStatus::Releasing => Style::warning,
        LeaseStatus::Released => Style::dim,
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

pub(crate) fn lock_page(lock: &LockStatus, style: Style) -> String {
    let state = match (lock.holders.iter().any(|held| !held.stale), lock.is_stale) {
        (true, _) => style.warning("held"),
        (false, true) => style.bad(format!("stale: the next acquire, or {}, frees it", command("sweep"))),
        (false, false) => style.good("free"),
    };
    let mut page = vec![format!("{}  {state}", style.bold(&lock.name))];
    if lock.holders.is_empty() && lock.token.get() > 0 {
        page.push(format!("  newest token  {}", lock.token));
        if let Some(last) = &lock.last {
            let by = last.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
            let (holder, at) = (visible(last.holder.as_str()), when(lock.now, last.at));
            page.push(format!("  last lease    {holder}, {}{by} at {at}", last.status));
        }
    }
    let blocks: Vec<_> = lock.holders.iter().map(|held| holder_block(lock, held, style)).collect();
    let mut page = lines(page) + &blocks.join("\n");
    if !lock.waiters.is_empty() {
        page += &lines([format!("{} in the queue", lock.waiters.len())]);
        page += &lines((1..).zip(&lock.waiters).map(|(position, waiter)| {
            let waited = short(lock.now.since(waiter.since));
            let priority = match waiter.priority {
                0 => String::new(),
                priority => format!(", priority {priority}"),
            };
            let reason = waiter.metadata.get("reason").map(visible).map(|reason| format!(": {reason}"));
            let reason = reason.unwrap_or_default();
            format!("  {position}. {}  {}, for {waited}{priority}{reason}", waiter.holder, waiter.mode)
        }));
    }
    page
}

fn holder_block(lock: &LockStatus, held: &HolderStatus, style: Style) -> String {
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
    if let Some(request) = &held.release_request {
        let reason = request.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        lines.push(("asked", format!("to stop by {}, {}{reason}", request.by, ago(now, request.at))));
    }
    let metadata: Vec<_> = held.metadata.iter().map(|(key, value)| (visible(key), visible(value))).collect();
    lines.extend(metadata.iter().map(|(key, value)| (key.as_str(), value.clone())));
    block(2, &lines, style.layout())
}

fn renewed(lock: &LockStatus, held: &HolderStatus) -> String {
    match held.renewals {
        0 => "not yet".to_owned(),
        times => format!("{}, last {}", count(times, "time"), ago(lock.now, held.renewed_at)),
    }
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeaseView {
    pub(crate) name: String,
    /// Same as `name`, under the key that older scripts may use.
    lock: String,
    pub(crate) lease_id: String,
    pub(crate) token: u64,
    holder: String,
    mode: String,
    acquired_at: String,
    expires_at: String,
    ttl_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    release_request: Option<serde_json::Value>,
    /// Ended lease that this one took over from.
    #[serde(skip_serializing_if = "Option::is_none")]
    took_over: Option<TookOverView>,
    /// Description of `took_over` for text output.
    #[serde(skip)]
    pub(crate) taken: Option<String>,
    /// Expiry time for text output.
    #[serde(skip)]
    pub(crate) until: String,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct TookOverView {
    holder: String,
    token: u64,
    renewed_at: String,
    expires_at: String,
}

/// Leases acquired together; the fields of the first requested one are repeated at the top level.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Leases {
    #[serde(flatten)]
    first: LeaseView,
    #[serde(rename = "leases")]
    all: Vec<LeaseView>,
}

impl LeaseView {
    pub(crate) fn of_lease(lock: &LockName, lease: &Lease) -> Self {
        Self {
            name: lock.to_string(),
            lock: lock.to_string(),
            lease_id: lease.request.lease_id.to_string(),
            token: lease.token.get(),
            holder: lease.request.holder.to_string(),
            mode: lease.request.mode.to_string(),
            acquired_at: format!("{:#}", lease.acquired_at),
            expires_at: format!("{:#}", lease.expires_at),
            ttl_seconds: lease.request.ttl.as_duration().as_secs_f64(),
            release_request: None,
            took_over: lease.took_over.as_deref().map(|before| TookOverView {
                holder: before.holder.to_string(),
                token: before.token.get(),
                renewed_at: format!("{:#}", before.renewed_at),
                expires_at: format!("{:#}", before.expires_at),
            }),
            taken: lease.took_over.as_ref().map(|before| before.describe(lease.acquired_at)),
            until: when(lease.renewed_at, lease.expires_at),
        }
    }

    pub(crate) fn of_holder(lock: &LockName, held: &HolderStatus) -> Self {
        Self {
            name: lock.to_string(),
            lock: lock.to_string(),
            lease_id: held.lease_id.to_string(),
            token: held.token.get(),
            holder: held.holder.to_string(),
            mode: held.mode.to_string(),
            acquired_at: format!("{:#}", held.acquired_at),
            expires_at: format!("{:#}", held.expires_at),
            ttl_seconds: held.ttl_seconds,
            release_request: held
                .release_request
                .as_ref()
                .and_then(|request| serde_json::to_value(request).ok()),
            took_over: None,
            taken: None,
            until: when(held.renewed_at, held.expires_at),
        }
    }

    fn text(&self) -> String {
        let known = [("lease id", self.lease_id.clone()), ("token", self.token.to_string())];
        format!(
            "{}  held by {} until {}\n{}",
            self.name,
            self.holder,
            self.until,
            block(2, &known, Layout::Plain)
        )
    }
}

impl Leases {
    /// Collects the leases in the order in which the locks were requested; `None` if there is no lease.
    pub(crate) fn new(requested: &[LockName], held: &[(LockName, Lease)]) -> Option<Self> {
        let find = |name| held.iter().find(|(lock, _)| lock == name);
        let found = requested.iter().filter_map(find);
        let all: Vec<_> = found.map(|(lock, lease)| LeaseView::of_lease(lock, lease)).collect();
        let first = all.first()?.clone();
        Some(Self { first, all })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LeaseView> {
        self.all.iter()
    }

    pub(crate) fn text(&self) -> String {
        self.iter().map(LeaseView::text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fixture;

    #[test]
    fn a_table_has_a_row_for_each_holder_and_each_free_lock() {
        let locks = [fixture::held("deploy/prod"), fixture::shared("reports"), fixture::free("nightly")];
        insta::assert_snapshot!(lock_table(&locks, Style::PLAIN), @"
        NAME         HOLDER         TOKEN             HELD  EXPIRES  WAITING  MODE       STATUS
        deploy/prod  ada@web1:4711  1730817105000000  12s   in 28s   2        exclusive  releasing
        reports      carol          1730817109000000  8s    in 22s   0        shared     active
        reports      dan            1730817110000000  7s    in 23s   0        shared     active
        nightly      -              1730817105000000  -     -        0        -          free
        ");
    }

    #[test]
    fn a_page_shows_all_details() {
        insta::assert_snapshot!(lock_page(&fixture::held("deploy/prod"), Style::PLAIN), @r"
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
        insta::assert_snapshot!(lock_page(&fixture::stale("deploy/prod"), Style::PLAIN), @r"
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
        insta::assert_snapshot!(lock_page(&fixture::free("deploy/prod"), Style::PLAIN), @"
        deploy/prod  free
          newest token  1730817105000000
        ");
    }
}
