//! Figures that the charts show: recorded every minute, kept for at least 24 h in the store.
//!
//! One document has the figures of one hour. Servers of the same store merge their figures by
//! compare-and-swap. The documents are used again after two days, so their number is bounded on every
//! engine.

use std::sync::Weak;
use std::time::Duration;

use leasehold::model::{Timestamp, Ttl};
use leasehold::store::{MetricsSnapshot, NewDocument, PutIf, RESERVED_PREFIX};
use leasehold::{Leasehold, Result};

use super::series::{Hour, Minute};
use crate::metrics::StoreCounts;
use crate::server::Shared;

const INTERVAL: Duration = Duration::from_mins(1);
/// Number of documents. The figures of more than a day must be in them.
const DOCUMENTS: u64 = 48;
const HOURS_SHOWN: u64 = 25;
const MAX_CONFLICTS: usize = 20;
/// Retention of a document on an engine that can drop old ones: as long as the document is used.
const KEEP: Ttl = Ttl::from_secs(DOCUMENTS * 3600);

/// Records the figures of a server until it is dropped. Does nothing on a store without documents, and on
/// one that allows only a few thousand requests per hour.
pub(crate) async fn record(server: Weak<Shared>) {
    let mut last = match server.upgrade() {
        Some(server) if can_record(&server.leasehold) => server.metrics.read_counters().await,
        _ => return,
    };
    loop {
        tokio::time::sleep(INTERVAL).await;
        let Some(server) = server.upgrade() else { return };
        let now = server.metrics.read_counters().await;
        // A scan of all locks costs money on some engines; their figures have no gauges.
        let is_cheap = server.leasehold.capabilities().engine != "dynamodb";
        let counts = if is_cheap { server.metrics.read().await.1 } else { None };
        let figures = difference(&last, &now, counts.as_deref());
        if figures.is_empty() {
            last = now;
            continue;
        }
        // After a failure the figures are part of the next minute.
        match add(&server.leasehold, figures, &now.acquire.bounds).await {
            Ok(()) => last = now,
            Err(error) => tracing::debug!(%error, "failed to store the figures of the dashboard"),
        }
    }
}

fn can_record(leasehold: &Leasehold) -> bool {
    leasehold.store().documents().is_some() && leasehold.capabilities().engine != "github"
}

fn difference(last: &MetricsSnapshot, now: &MetricsSnapshot, counts: Option<&StoreCounts>) -> Minute {
    let since = |now: u64, last: u64| now.saturating_sub(last);
    let mut waits: Vec<u64> = now.acquire.counts.clone();
    waits.iter_mut().zip(&last.acquire.counts).for_each(|(now, last)| *now = since(*now, *last));
    if waits.iter().all(|count| *count == 0) {
        waits.clear();
    }
    let mut minute = Minute {
        number: 0,
        acquisitions: since(now.acquisitions, last.acquisitions),
        conflicts: since(now.conflicts, last.conflicts),
        recovered: since(now.recovered_in_all(), last.recovered_in_all()),
        failures: since(now.failures, last.failures),
        task_leases: since(now.task_leases, last.task_leases),
        task_expiries: since(now.task_leases_expired, last.task_leases_expired),
        waits,
        ..Minute::default()
    };
    if let Some(counts) = counts {
        (minute.held, minute.waiting) = (counts.locks_held, counts.lock_waiters);
        for ((_, state), count) in counts.tasks.iter().filter(|(_, count)| **count > 0) {
            *minute.tasks.entry((*state).to_owned()).or_default() += count;
        }
    }
    minute
}

/// Adds figures to the document of the current hour.
pub(in crate::dashboard) async fn add(
    leasehold: &Leasehold,
    mut figures: Minute,
    bounds: &[f64],
) -> Result<()> {
    let store = leasehold.store();
    let Some(docs) = store.documents() else { return Ok(()) };
    // The last bucket has no upper bound, and JSON has no infinity.
    let bounds: Vec<f64> = bounds.iter().copied().filter(|bound| bound.is_finite()).collect();
    figures.number = minute_of(leasehold.now().await?);
    let key = key(figures.number / 60);
    let mut found = docs.get(&key).await?;
    for _ in 0..MAX_CONFLICTS {
        // A document that cannot be read was written by another version; its figures are replaced.
        let mut hour: Hour =
            found.as_ref().and_then(|doc| serde_json::from_str(&doc.body).ok()).unwrap_or_default();
        hour.add(&figures, &bounds);
        let body = serde_json::to_string(&hour).expect("figures are serializable");
        let version = found.as_ref().map(|doc| doc.version);
        match docs.put_if(&key, version, NewDocument::new(body).keep(KEEP)).await? {
            PutIf::Written(_) => return Ok(()),
            PutIf::Conflict(newer) => found = newer,
        }
    }
    Ok(())
}

/// Figures of the last 24 h, oldest first, and the bounds of their buckets.
pub(in crate::dashboard) async fn read(
    leasehold: &Leasehold,
    now: Timestamp,
) -> Result<(Vec<Minute>, Vec<f64>)> {
    let store = leasehold.store();
    let Some(docs) = store.documents().filter(|_| can_record(leasehold)) else {
        return Ok(Default::default());
    };
    let (last, first) = (minute_of(now) / 60, (minute_of(now) / 60).saturating_sub(HOURS_SHOWN - 1));
    let keys: Vec<String> = (first..=last).map(key).collect();
    let (mut figures, mut bounds) = (Vec::new(), Vec::new());
    for doc in docs.get_all(&keys).await?.into_iter().flatten() {
        let Ok(hour) = serde_json::from_str::<Hour>(&doc.body) else { continue };
        if (first..=last).contains(&hour.number) {
            bounds.clone_from(&hour.bounds);
            figures.extend(hour.into_minutes());
        }
    }
    figures.retain(|minute| minute.number + 24 * 60 > minute_of(now));
    figures.sort_by_key(|minute| minute.number);
    Ok((figures, bounds))
}

fn minute_of(now: Timestamp) -> u64 {
    now.as_micros() / 60_000_000
}

fn key(hour: u64) -> String {
    format!("{RESERVED_PREFIX}server/figures/{:02}", hour % DOCUMENTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn figures_of_several_servers_are_merged_in_the_store() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let figures = || Minute { acquisitions: 2, held: 5, waits: vec![1, 1], ..Minute::default() };
        let writes = (0..10).map(|_| add(&leasehold, figures(), &[0.1, 1.0, f64::INFINITY]));
        futures_util::future::try_join_all(writes).await.unwrap();
        let now = leasehold.now().await.unwrap();
        let (read, bounds) = read(&leasehold, now).await.unwrap();
        assert_eq!(bounds, [0.1, 1.0]);
        assert_eq!(read.iter().map(|minute| minute.acquisitions).sum::<u64>(), 20);
        assert!(read.iter().all(|minute| minute.held == 5));
        let later = now.plus(Ttl::from_secs(25 * 3600));
        assert_eq!(super::read(&leasehold, later).await.unwrap().0, []);
    }

    #[test]
    fn the_documents_hold_more_than_a_day() {
        let keys: std::collections::BTreeSet<_> = (0..1000).map(key).collect();
        assert_eq!(keys.len() as u64, DOCUMENTS);
        const { assert!(HOURS_SHOWN < DOCUMENTS) };
    }
}
