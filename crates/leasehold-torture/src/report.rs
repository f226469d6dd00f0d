//! Report of a history: its figures, its violations, the verdict, and what the engine does not promise.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::checker::{Checked, Checker, Operations, Property, Summary};
use crate::history::{Header, History};

/// Figures, violations and verdict of a history.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// What was run.
    #[serde(flatten)]
    pub header: Header,
    /// Time between the first and the last record, in seconds.
    pub seconds: u64,
    /// Number of records.
    pub records: u64,
    /// Whether the user has ended the run before its time.
    pub interrupted: bool,
    /// Whether the history has the end of every task. The coordinator of one that has not was ended.
    pub complete: bool,
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
    /// What the engine does not promise, whatever the run has shown.
    pub not_promised: NotPromised,
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
        let mut checker = Checker::new(history.header.clone());
        for record in &history.records {
            checker.push(record.clone());
        }
        Self::finish(checker)
    }

    /// Checks the rest of the records, and sums all of them up.
    pub fn finish(checker: Checker) -> Self {
        let (header, results, summary) = checker.finish();
        let violations = results.iter().map(|checked| checked.violations.len()).sum();
        let is_promised = |property| match property {
            Property::FairQueue => header.queues,
            Property::Tasks => header.tasks,
            Property::Exclusion | Property::Fencing => true,
        };
        let was_checked =
            results.iter().all(|checked| checked.compared > 0 || !is_promised(checked.property));
        let Summary { first, last, operations, faults, handovers, recoveries, .. } = summary;
        Self {
            seconds: (last - first.unwrap_or(last)) / 1_000_000,
            records: summary.records,
            interrupted: summary.is_interrupted,
            complete: summary.is_complete,
            operations,
            faults,
            handover: Latency::of(handovers),
            recovery: Latency::of(recoveries),
            violations,
            fit: violations == 0 && was_checked,
            not_promised: NotPromised::of(&header),
            checked: results,
            header,
        }
    }
}

/// Checks a history against every property.
pub fn check(history: &History) -> Vec<Checked> {
    Report::of(history).checked
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
        if self.interrupted {
            writeln!(f, "  interrupted before its time")?;
        }
        if !self.complete {
            writeln!(f, "  incomplete: the run was cut off, and whether every task ends was not checked")?;
        }
        let Operations { acquires, grants, renewals, lost, forced, tasks, attempts, ticks, .. } = operations;
        writeln!(
            f,
            "  locks       {acquires} acquires, {grants} grants, {renewals} renewals, {lost} lost, {forced} forced"
        )?;
        let ticks = if *ticks > 0 { format!(", {ticks} ticks of a schedule") } else { String::new() };
        writeln!(f, "  tasks       {tasks} tasks, {attempts} attempts{ticks}")?;
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
        let verdict = |checked: &Checked| match (checked.violations.len(), checked.compared) {
            (0, 0) => format!("{} -", checked.property),
            (0, _) => format!("{} ✓", checked.property),
            (..) => format!("{} ✗", checked.property),
        };
        let verdicts: Vec<_> = self.checked.iter().map(verdict).collect();
        writeln!(f, "\n{}: {}", if self.fit { "fit for" } else { "NOT fit" }, verdicts.join("  "))?;
        write!(f, "{}", self.not_promised)
    }
}

/// What an engine does not promise, whatever a run has shown: the last line of a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotPromised {
    /// Promises that the engine does not make.
    pub limits: Vec<&'static str>,
    /// Page that explains them.
    pub see: &'static str,
}

/// Page that explains the limits.
const SEE: &str = "docs/promises.md#what-it-does-not-promise";

/// Limits of the engines by their name in the URL. The pages of `docs/engines/` explain each.
const ENGINES: [(&str, &[&str]); 6] = [
    ("sqlite", &["processes of another machine", "network file systems"]),
    ("postgres", &["a failover to an asynchronous replica"]),
    ("redis", &["a failover, which is asynchronous", "a restart without an append-only file"]),
    ("dynamodb", &["replicas of a global table in other regions"]),
    (
        "github",
        &["lists of comments that are out of date (unless ?arbiter=ref)", "GitHub's own availability"],
    ),
    ("http", &["what the engine of the server does not promise"]),
];

impl NotPromised {
    fn of(header: &Header) -> Self {
        let of_engine = ENGINES.iter().find(|(engine, _)| *engine == header.engine);
        let mut limits = of_engine.map(|(_, limits)| limits.to_vec()).unwrap_or_default();
        if !header.queues {
            limits.push("the order of waiters");
        }
        if !header.tasks {
            limits.push("tasks");
        }
        limits.push("a holder in a paused process or virtual machine, without a fence");
        Self { limits, see: SEE }
    }
}

impl fmt::Display for NotPromised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not promised: {} (see {})", self.limits.join("; "), self.see)
    }
}
