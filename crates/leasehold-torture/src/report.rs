//! Report of a history: its figures, its violations and the verdict.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::KILL;
use crate::checker::{self, Checked, Property};
use crate::history::{Event, Header, History};

/// Figures, violations and verdict of a history.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// What was run.
    #[serde(flatten)]
    pub header: Header,
    /// Time between the first and the last record, in seconds.
    pub seconds: u64,
    /// Operations of all workers.
    pub operations: Operations,
    /// Number of faults of each kind.
    pub faults: BTreeMap<String, u64>,
    /// Time from the end of a lease to the next grant of its lock to a waiter.
    pub handover: Latency,
    /// Time from the kill of a holder to the next grant of its lock.
    pub recovery: Latency,
    /// Results of the checks.
    pub checked: Vec<Checked>,
    /// Number of violations.
    pub violations: usize,
    /// Whether every property was checked that the engine promises, and holds.
    pub fit: bool,
}

/// Numbers of operations.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Operations {
    /// Acquires that were sent.
    pub acquires: u64,
    /// Leases that were granted.
    pub grants: u64,
    /// Renewals, of leases and of tasks.
    pub renewals: u64,
    /// Leases that their holder was told to have lost.
    pub lost: u64,
    /// Leases that were ended by force.
    pub forced: u64,
    /// Tasks and executions that were acknowledged, without duplicates.
    pub tasks: u64,
    /// Attempts at tasks and executions.
    pub attempts: u64,
    /// Writes of holders whose lease had ended that the sink has rejected.
    pub stale_writes_rejected: u64,
}

/// Latencies in milliseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Latency {
    /// Number of measurements.
    pub count: usize,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
}

impl Latency {
    fn of(mut micros: Vec<u64>) -> Self {
        micros.sort_unstable();
        let at = |hundredths: usize| {
            let index = (micros.len() * hundredths / 100).min(micros.len().saturating_sub(1));
            #[expect(clippy::cast_precision_loss, reason = "milliseconds for people")]
            micros.get(index).map_or(0.0, |micros| *micros as f64 / 1000.0)
        };
        Self { count: micros.len(), p50: at(50), p99: at(99), max: at(100) }
    }
}

impl Report {
    /// Checks a history and sums it up.
    pub fn of(history: &History) -> Self {
        let header = history.header.clone();
        let checked = checker::check(history);
        let violations = checked.iter().map(|checked| checked.violations.len()).sum();
        let is_promised = |property| match property {
            Property::FairQueue => header.queues,
            Property::Tasks => header.tasks,
            Property::Exclusion | Property::Fencing => true,
        };
        let was_checked = checked.iter().all(|checked| checked.facts > 0 || !is_promised(checked.property));
        let mut operations = Operations::default();
        let mut faults = BTreeMap::new();
        for record in &history.records {
            match &record.event {
                Event::Acquire { .. } => operations.acquires += 1,
                Event::Granted { .. } => operations.grants += 1,
                Event::Extended { .. } => operations.renewals += 1,
                Event::Ended { lost: true, .. } => operations.lost += 1,
                Event::Force { .. } => operations.forced += 1,
                Event::Enqueued { duplicate: false, .. } => operations.tasks += 1,
                Event::Attempt { .. } => operations.attempts += 1,
                Event::Sink { accepted: false, .. } => operations.stale_writes_rejected += 1,
                Event::Fault { fault, .. } => *faults.entry(fault.clone()).or_default() += 1,
                _ => {}
            }
        }
        let first = history.records.first().map_or(0, |record| record.at);
        let last = history.records.last().map_or(0, |record| record.at);
        let (handover, recovery) = latencies(history);
        Self {
            header,
            seconds: (last - first) / 1_000_000,
            operations,
            faults,
            handover: Latency::of(handover),
            recovery: Latency::of(recovery),
            violations,
            fit: violations == 0 && was_checked,
            checked,
        }
    }
}

/// Returns the latencies of hand-overs and of recoveries, in microseconds.
fn latencies(history: &History) -> (Vec<u64>, Vec<u64>) {
    let (mut handover, mut recovery) = (Vec::new(), Vec::new());
    let is_kill = |event: &Event| matches!(event, Event::Fault { fault, .. } if fault == KILL);
    let kills: Vec<u64> =
        history.records.iter().filter(|record| is_kill(&record.event)).map(|record| record.at).collect();
    checker::for_each_handover(history, |ended, granted| {
        let latencies = if kills.binary_search(&ended).is_ok() { &mut recovery } else { &mut handover };
        latencies.push(granted - ended);
    });
    (handover, recovery)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { header, operations, faults, handover, recovery, .. } = self;
        let Header { store, seed, workers, ttl_millis, .. } = header;
        writeln!(
            f,
            "{store}: {} s, {workers} processes, leases of {ttl_millis} ms, seed {seed}",
            self.seconds
        )?;
        let Operations { acquires, grants, renewals, lost, forced, tasks, attempts, .. } = operations;
        writeln!(
            f,
            "  locks       {acquires} acquires, {grants} grants, {renewals} renewals, {lost} lost, {forced} forced"
        )?;
        writeln!(f, "  tasks       {tasks} tasks, {attempts} attempts")?;
        let number: u64 = faults.values().sum();
        let kinds: Vec<_> = faults.iter().map(|(kind, number)| format!("{number} {kind}")).collect();
        writeln!(f, "  faults      {number}: {}", kinds.join(", "))?;
        if !header.proxied && header.engine != "sqlite" {
            writeln!(f, "              none of connections: they need a store on this machine, without TLS")?;
        }
        writeln!(
            f,
            "  hand-over   {} times, p50 {:.1} ms, p99 {:.1} ms",
            handover.count, handover.p50, handover.p99
        )?;
        writeln!(
            f,
            "  recovery    {} locks of killed holders, p50 {:.0} ms, at most {:.0} ms",
            recovery.count, recovery.p50, recovery.max
        )?;
        writeln!(f, "  fence       {} stale reads and writes rejected", operations.stale_writes_rejected)?;
        writeln!(f, "  violations  {}", self.violations)?;
        for checked in &self.checked {
            let (first, more) = (checked.violations.first(), checked.violations.len().saturating_sub(1));
            let Some(violation) = first else { continue };
            writeln!(f, "\n{} is violated: {}", checked.property, violation.message)?;
            for record in &violation.excerpt {
                writeln!(f, "  {}", serde_json::to_string(record).unwrap_or_default())?;
            }
            if more > 0 {
                writeln!(f, "  and {more} more")?;
            }
        }
        let verdict = |checked: &Checked| match (checked.violations.len(), checked.facts) {
            (0, 0) => format!("{} -", checked.property),
            (0, _) => format!("{} ✓", checked.property),
            (..) => format!("{} ✗", checked.property),
        };
        let verdicts: Vec<_> = self.checked.iter().map(verdict).collect();
        write!(f, "\n{}: {}", if self.fit { "fit for" } else { "NOT fit" }, verdicts.join("  "))
    }
}
