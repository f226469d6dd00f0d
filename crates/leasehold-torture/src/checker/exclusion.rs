//! S1: spans of conflicting holders of one lock never overlap. S5: a lease that has ended is not
//! renewed.

use std::collections::HashMap;

use super::findings::{Check, Findings, seconds};
use super::spans::{Resource, Span};
use crate::history::{Event, Mode};

pub(super) fn check(check: &Check<'_>, findings: &mut Findings) {
    of_resources(check, findings, |resource| matches!(resource, Resource::Lock(_)));
    none_is_renewed_after_force(check, findings);
}

/// Compares each span with those that have not ended when it begins.
pub(super) fn of_resources(
    check: &Check<'_>,
    findings: &mut Findings,
    includes: impl Fn(Resource<'_>) -> bool,
) {
    let spans = check.spans.iter().filter(|span| includes(span.resource) && !span.is_empty());
    let mut holders: Vec<&Span<'_>> = Vec::new();
    for span in spans {
        findings.compared += u64::from(check.is_new(span.from));
        holders.retain(|holder| holder.resource == span.resource && holder.to > span.from);
        let conflict = conflict(&holders, span);
        if conflict.is_some() && check.may_lose_leases(span.from) {
            findings.excused += u64::from(check.is_new(span.from));
        } else if let Some(holder) = conflict {
            let (Resource::Lock(name) | Resource::Task(name)) = span.resource;
            let message = format!(
                "'{name}' is held twice: by process {} since {} s, and by process {} from {} s on",
                holder.process,
                seconds(check, holder.from),
                span.process,
                seconds(check, span.from)
            );
            findings.report(check, message, &[holder.id(), span.id()]);
        }
        holders.push(span);
    }
}

/// Returns a holder that the span must not overlap with.
fn conflict<'a, 'b>(holders: &[&'a Span<'b>], span: &Span<'_>) -> Option<&'a Span<'b>> {
    let slots = |mode| if let Mode::Slots(slots) = mode { slots as usize } else { usize::MAX };
    holders.iter().copied().find(|holder| {
        let is_alone = [holder.mode, span.mode].contains(&Mode::Exclusive);
        is_alone || holders.len() >= slots(holder.mode).min(slots(span.mode))
    })
}

/// A renewal that was sent after the response to a forced release of the lease is refused. A lease
/// is valid for one TTL at most from the time at which its renewal was sent, so the time of the
/// sending is known.
fn none_is_renewed_after_force(check: &Check<'_>, findings: &mut Findings) {
    let ttl = check.history.header.ttl_millis.saturating_mul(1000);
    let mut leases: HashMap<(u32, u32), (&str, Option<u64>)> = HashMap::new();
    // Locks and tokens of the leases that are ended by force.
    let mut requests: HashMap<(u32, u32), (&str, u64)> = HashMap::new();
    let mut forced = HashMap::new();
    for record in &check.history.records {
        let id = |op: &u32| (record.process, *op);
        match &record.event {
            Event::Acquire { op, lock, .. } => {
                leases.insert(id(op), (lock, None));
            }
            Event::Granted { op, token, .. } => {
                if let Some((_, of_lease)) = leases.get_mut(&id(op)) {
                    *of_lease = Some(*token);
                }
            }
            Event::Force { op, lock, token } => {
                requests.insert(id(op), (lock, *token));
            }
            Event::Released { op, code: None } => {
                if let Some(lease) = requests.remove(&id(op)) {
                    forced.insert(lease, (record.at, id(op)));
                }
            }
            Event::Extended { op, until } => {
                let Some((lock, Some(token))) = leases.get(&id(op)) else { continue };
                if let Some((at, force)) = forced.get(&(*lock, *token))
                    && until.saturating_sub(ttl) > *at
                {
                    let message = format!(
                        "process {} renews its lease of '{lock}' with token {token} at {} s, and the lease was ended by force at {} s",
                        record.process,
                        seconds(check, record.at),
                        seconds(check, *at)
                    );
                    findings.report(check, message, &[id(op), *force]);
                }
            }
            _ => {}
        }
    }
}
