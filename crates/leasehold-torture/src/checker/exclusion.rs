//! S1: spans of conflicting holders of one lock never overlap.

use super::findings::{Check, Findings, Violation, seconds};
use super::spans::{Resource, Span};
use crate::history::Mode;

pub(super) fn check(check: &Check<'_>, findings: &mut Findings) {
    of_resources(check, findings, |resource| matches!(resource, Resource::Lock(_)));
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
        findings.facts += 1;
        holders.retain(|holder| holder.resource == span.resource && holder.to > span.from);
        if let Some(holder) = conflict(&holders, span) {
            let (Resource::Lock(name) | Resource::Task(name)) = span.resource;
            let message = format!(
                "'{name}' is held twice: by process {} until {} s, and by process {} from {} s on",
                holder.process,
                seconds(check.history, holder.to),
                span.process,
                seconds(check.history, span.from)
            );
            let excerpt = check.excerpt(&[holder.id(), span.id()]);
            findings.violations.push(Violation { message, excerpt });
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
