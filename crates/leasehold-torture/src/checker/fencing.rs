//! S3: tokens rise, and one token names one lease. S4: the sink never accepts an older token, and
//! so no write is lost.

use std::collections::HashMap;

use super::findings::{Check, Findings, Violation};
use super::spans::{Resource, Span};
use crate::history::{Event, Mode};

pub(super) fn check(check: &Check<'_>, findings: &mut Findings) {
    for spans in check.spans.chunk_by(|one, other| one.resource == other.resource) {
        tokens_rise(check, spans, findings);
    }
    sink(check, findings);
}

fn tokens_rise(check: &Check<'_>, spans: &[Span<'_>], findings: &mut Findings) {
    let mut leases: HashMap<u64, &Span<'_>> = HashMap::new();
    let mut newest_before: Option<(u64, &Span<'_>)> = None;
    let is_exclusive = spans.iter().all(|span| span.mode == Mode::Exclusive);
    let mut by_grant = spans.iter().filter_map(|span| Some((span.token?, span))).peekable();
    let mut by_request: Vec<_> = by_grant.clone().collect();
    by_request.sort_by_key(|(_, span)| span.asked);
    let mut report = |what: &str, old: &Span<'_>, new: &Span<'_>| {
        let (Resource::Lock(name) | Resource::Task(name)) = new.resource;
        let message = format!(
            "{what} of '{name}': process {} had token {} and process {} then had token {}",
            old.process,
            old.token.unwrap_or_default(),
            new.process,
            new.token.unwrap_or_default()
        );
        findings.violations.push(Violation { message, excerpt: check.excerpt(&[old.id(), new.id()]) });
    };
    let mut previous: Option<&Span<'_>> = None;
    for (token, span) in by_grant.clone() {
        findings.facts += 1;
        if let Some(other) = leases.insert(token, span)
            && (other.lease != span.lease || span.lease.is_empty())
        {
            report("two leases have one token", other, span);
        }
        if is_exclusive && !span.is_empty() {
            if let Some(previous) = previous.filter(|previous| previous.token > span.token) {
                report("a token falls", previous, span);
            }
            previous = Some(span);
        }
    }
    // Whatever the modes: a request that was sent after a grant gets a newer token.
    for (token, span) in by_request {
        while let Some((token, granted)) = by_grant.next_if(|(_, granted)| granted.from < span.asked) {
            if newest_before.is_none_or(|(newest, _)| newest < token) {
                newest_before = Some((token, granted));
            }
        }
        if let Some((newest, granted)) = newest_before
            && newest >= token
            && granted.lease != span.lease
        {
            report("a token falls", granted, span);
        }
    }
}

fn sink(check: &Check<'_>, findings: &mut Findings) {
    let mut newest: HashMap<&str, (u64, (u32, u32))> = HashMap::new();
    let mut last_write: HashMap<&str, (u64, (u32, u32))> = HashMap::new();
    for record in &check.history.records {
        let Event::Sink { worker, op, lock, token, seen, value, accepted: true } = &record.event else {
            continue;
        };
        findings.facts += 1;
        let id = (*worker, *op);
        let mut report = |message: String, other| {
            findings.violations.push(Violation { message, excerpt: check.excerpt(&[other, id]) });
        };
        if let Some((newest, other)) = newest.insert(lock, (*token, id))
            && newest > *token
        {
            report(format!("the sink of '{lock}' accepts token {token} after token {newest}"), other);
        }
        if let Some(seen) = seen {
            let before = last_write.insert(lock, (*value, id));
            let (written, other) = before.unwrap_or((0, id));
            if written != *seen {
                report(
                    format!(
                        "a write to the sink of '{lock}' is lost: process {worker} replaces {written}, which it has not read, and had read {seen}"
                    ),
                    other,
                );
            }
        }
    }
}
