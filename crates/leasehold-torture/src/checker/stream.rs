//! Check of a history of any length: records are checked in parts, and only the records that later
//! parts need are kept.

use std::collections::BTreeMap;

use serde::Serialize;

use super::fencing::SinkState;
use super::findings::{Check, Checked, Findings, Loss, Property};
use super::{exclusion, fencing, parts, queue, spans, tasks};
use crate::KILL;
use crate::history::{Event, Header, History, Record};

/// Number of records after which they are checked.
const PART: usize = 200_000;

/// Checks the records of a history as they arrive. Its memory does not grow with the history,
/// except by 8 bytes for each hand-over of a lock.
#[derive(Debug)]
pub struct Checker {
    header: Header,
    records: Vec<Record>,
    /// Number of records at which they are checked next.
    next_check: usize,
    part: usize,
    new_from: u64,
    sink: SinkState,
    losses: Vec<Loss>,
    findings: [Findings; 4],
    summary: Summary,
}

/// Figures of a history.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) first: Option<u64>,
    pub(crate) last: u64,
    pub(crate) operations: Operations,
    pub(crate) faults: BTreeMap<String, u64>,
    /// Latencies of hand-overs, in microseconds.
    pub(crate) handovers: Vec<u64>,
    /// Latencies of recoveries, in microseconds.
    pub(crate) recoveries: Vec<u64>,
    pub(crate) records: u64,
    pub(crate) is_interrupted: bool,
    pub(crate) is_complete: bool,
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
    /// Leases whose loss their holder has noticed.
    pub lost: u64,
    /// Leases that were ended by force.
    pub forced: u64,
    /// Tasks and executions that were acknowledged, without duplicates.
    pub tasks: u64,
    /// Attempts at tasks and executions.
    pub attempts: u64,
    /// Ticks of the schedule that all workers run.
    pub ticks: u64,
    /// Writes of holders whose lease had ended that the sink has rejected.
    pub stale_writes_rejected: u64,
}

impl Checker {
    /// Creates a checker of the history with this header.
    pub fn new(header: Header) -> Self {
        Self::with_parts(header, PART)
    }

    /// Creates a checker that checks its records whenever it has got this number of them.
    pub fn with_parts(header: Header, part: usize) -> Self {
        Self {
            header,
            records: Vec::new(),
            next_check: part,
            part,
            new_from: 0,
            sink: SinkState::default(),
            losses: Vec::new(),
            findings: Default::default(),
            summary: Summary::default(),
        }
    }

    /// Adds a record. Records of several processes may arrive in another order than that of their
    /// times, by a few seconds.
    pub fn push(&mut self, record: Record) {
        self.summary.count(&record);
        self.losses.extend(Loss::of(&record));
        self.records.push(record);
        if self.records.len() >= self.next_check {
            let ttl = self.header.ttl_millis.saturating_mul(1000);
            self.check(self.summary.last.saturating_sub(parts::late(ttl)));
            // Twice the rest at least, so that each record is checked a few times at most.
            self.next_check = self.part.max(2 * self.records.len());
        }
    }

    /// Returns the number of records that the checker holds.
    pub fn held(&self) -> usize {
        self.records.len()
    }

    /// Checks the rest, and returns what was found.
    pub(crate) fn finish(mut self) -> (Header, Vec<Checked>, Summary) {
        self.check(u64::MAX);
        let properties = [Property::Exclusion, Property::Fencing, Property::FairQueue, Property::Tasks];
        let checked = properties.into_iter().zip(self.findings).map(|(property, findings)| Checked {
            property,
            compared: findings.compared,
            violations: findings.violations,
            excused: findings.excused,
        });
        (self.header, checked.collect(), self.summary)
    }

    /// Checks the records before this time, and drops those that later parts do not need.
    fn check(&mut self, before: u64) {
        let mut history = History::new(self.header.clone(), std::mem::take(&mut self.records));
        let rest = history.records.split_off(history.records.partition_point(|record| record.at < before));
        let spans = spans::of(&history);
        let start = self.summary.first.unwrap_or_default();
        let (new_from, losses) = (self.new_from, &self.losses);
        let check = Check { history: &history, spans: &spans, start, new_from, losses };
        let [of_exclusion, of_fencing, of_queue, of_tasks] = &mut self.findings;
        exclusion::check(&check, of_exclusion);
        fencing::check(&check, of_fencing, &mut self.sink);
        queue::check(&check, of_queue);
        tasks::check(&check, of_tasks);
        self.summary.add_latencies(&check);
        drop(spans);
        self.records = parts::needed_later(history.records, before);
        self.records.extend(rest);
        self.new_from = before;
    }
}

impl Summary {
    fn count(&mut self, record: &Record) {
        self.records += 1;
        self.first = Some(self.first.map_or(record.at, |first| first.min(record.at)));
        self.last = self.last.max(record.at);
        let operations = &mut self.operations;
        match &record.event {
            Event::Acquire { .. } => operations.acquires += 1,
            Event::Granted { .. } => operations.grants += 1,
            Event::Extended { .. } => operations.renewals += 1,
            Event::Ended { lost: true, .. } => operations.lost += 1,
            Event::Force { .. } => operations.forced += 1,
            Event::Enqueued { duplicate: false, .. } => operations.tasks += 1,
            Event::Attempt { .. } => operations.attempts += 1,
            Event::Tick { .. } => operations.ticks += 1,
            Event::Sink { accepted: false, .. } => operations.stale_writes_rejected += 1,
            Event::Fault { fault, .. } | Event::EngineFault { fault, .. } => {
                *self.faults.entry(fault.clone()).or_default() += 1;
            }
            Event::Interrupted => self.is_interrupted = true,
            Event::Complete => self.is_complete = true,
            _ => {}
        }
    }

    fn add_latencies(&mut self, check: &Check<'_>) {
        let is_kill = |event: &Event| matches!(event, Event::Fault { fault, .. } if fault == KILL);
        let records = check.history.records.iter();
        let kills: Vec<u64> =
            records.filter(|record| is_kill(&record.event)).map(|record| record.at).collect();
        spans::for_each_handover(check.spans, |ended, granted| {
            if check.is_new(granted) {
                let is_recovery = kills.binary_search(&ended).is_ok();
                let latencies = if is_recovery { &mut self.recoveries } else { &mut self.handovers };
                latencies.push(granted - ended);
            }
        });
    }
}
