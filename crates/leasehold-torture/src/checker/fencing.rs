//! S3: tokens rise, and one token names one lease. S4: the sink never accepts an older token, and
//! so no write is lost.

use std::collections::HashMap;

use super::findings::{Check, Findings};
use super::spans::{Resource, Span};
use crate::history::{Event, Mode};

/// State of the sink before the records that are checked next.
#[derive(Debug, Default)]
pub(super) struct SinkState {
    /// Newest token of each lock, and the operation that had it.
    newest: HashMap<String, (u64, (u32, u32))>,
    /// Last value of each lock, and the operation that wrote it.
    last_write: HashMap<String, (u64, (u32, u32))>,
}

pub(super) fn check(check: &Check<'_>, findings: &mut Findings, sink: &mut SinkState) {
    for spans in check.spans.chunk_by(|one, other| one.resource == other.resource) {
        tokens_rise(check, spans, findings);
    }
    accepts_no_older_token(check, findings, sink);
}

fn tokens_rise(check: &Check<'_>, spans: &[Span<'_>], findings: &mut Findings) {
    let mut leases: HashMap<u64, &Span<'_>> = HashMap::new();
    let mut newest_before: Option<(u64, &Span<'_>)> = None;
    let is_exclusive = spans.iter().all(|span| span.mode == Mode::Exclusive);
    let mut by_grant = spans.iter().filter_map(|span| Some((span.token?, span))).peekable();
    let mut by_request: Vec<_> = by_grant.clone().collect();
    by_request.sort_by_key(|(_, span)| span.requested);
    let report = |findings: &mut Findings, what: &str, old: &Span<'_>, new: &Span<'_>| {
        let (Resource::Lock(name) | Resource::Task(name)) = new.resource;
        let message = format!(
            "{what} of '{name}': process {} had token {} and process {} then had token {}",
            old.process,
            old.token.unwrap_or_default(),
            new.process,
            new.token.unwrap_or_default()
        );
        findings.report(check, message, &[old.id(), new.id()]);
    };
    let mut previous: Option<&Span<'_>> = None;
    for (token, span) in by_grant.clone() {
        findings.compared += u64::from(check.is_new(span.from));
        if let Some(other) = leases.insert(token, span)
            && (other.lease != span.lease || span.lease.is_empty())
        {
            report(findings, "two leases have one token", other, span);
        }
        if is_exclusive && !span.is_empty() {
            if let Some(previous) = previous.filter(|previous| previous.token > span.token) {
                // If the engine has lost the older lease, the responses may have arrived in any order.
                if check.may_lose_leases(span.from) && span.requested <= previous.from {
                    findings.excused += u64::from(check.is_new(span.from));
                } else {
                    report(findings, "a token falls", previous, span);
                }
            }
            previous = Some(span);
        }
    }
    // Whatever the modes: a request that was sent after a grant gets a newer token.
    for (token, span) in by_request {
        while let Some((token, granted)) = by_grant.next_if(|(_, granted)| granted.from < span.requested) {
            if newest_before.is_none_or(|(newest, _)| newest < token) {
                newest_before = Some((token, granted));
            }
        }
        if let Some((newest, granted)) = newest_before
            && newest >= token
            && granted.lease != span.lease
        {
            report(findings, "a token falls", granted, span);
        }
    }
}

fn accepts_no_older_token(check: &Check<'_>, findings: &mut Findings, sink: &mut SinkState) {
    for record in check.history.records.iter().filter(|record| check.is_new(record.at)) {
        let Event::Sink { worker, op, lock, token, seen, value, accepted: true } = &record.event else {
            continue;
        };
        findings.compared += 1;
        let id = (*worker, *op);
        if let Some((newest, other)) = sink.newest.insert(lock.clone(), (*token, id))
            && newest > *token
        {
            let message = format!("the sink of '{lock}' accepts token {token} after token {newest}");
            findings.report(check, message, &[other, id]);
        }
        if let Some(seen) = seen {
            let before = sink.last_write.insert(lock.clone(), (*value, id));
            let (written, other) = before.unwrap_or((0, id));
            if written != *seen {
                let message = format!(
                    "a write to the sink of '{lock}' is lost: process {worker} replaces {written}, which it has not read, and had read {seen}"
                );
                findings.report(check, message, &[other, id]);
            }
        }
    }
}
