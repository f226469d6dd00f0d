//! S6: a task has one attempt at a time, and none after its end. S7: each acknowledged task ends.
//! S8: a key has one task.

use std::collections::HashMap;

use super::exclusion::of_resources;
use super::findings::{Check, Findings, Violation};
use super::spans::Resource;
use crate::MISSING;
use crate::history::{Event, Record};

/// State of a task at the end of the run.
struct Final<'a> {
    state: &'a str,
    token: u64,
    is_terminal: bool,
}

pub(super) fn check(check: &Check<'_>, findings: &mut Findings) {
    of_resources(check, findings, |resource| matches!(resource, Resource::Task(_)));
    let ends: HashMap<&str, Final<'_>> = check.history.records.iter().filter_map(end).collect();
    // A run that was interrupted has not read the tasks at its end.
    if !ends.is_empty() {
        none_is_lost(check, &ends, findings);
        none_runs_after_its_end(check, &ends, findings);
    }
    a_key_has_one_task(check, &ends, findings);
}

fn end(record: &Record) -> Option<(&str, Final<'_>)> {
    let Event::Final { task, state, token, terminal } = &record.event else { return None };
    Some((task.as_str(), Final { state, token: *token, is_terminal: *terminal }))
}

fn none_is_lost(check: &Check<'_>, ends: &HashMap<&str, Final<'_>>, findings: &mut Findings) {
    for record in &check.history.records {
        let Event::Enqueued { op, task, .. } = &record.event else { continue };
        findings.facts += 1;
        let message = match ends.get(task.as_str()) {
            Some(end) if end.is_terminal => continue,
            Some(end) if end.state == MISSING => {
                format!("task {task} was acknowledged and is lost: the store does not have it")
            }
            Some(end) => {
                format!("task {task} was acknowledged and does not end: it is {} at the end", end.state)
            }
            None => format!("task {task} was acknowledged, and its end is not known"),
        };
        findings.violations.push(Violation { message, excerpt: check.excerpt(&[(record.process, *op)]) });
    }
}

fn none_runs_after_its_end(check: &Check<'_>, ends: &HashMap<&str, Final<'_>>, findings: &mut Findings) {
    for span in check.spans {
        let (Resource::Task(task), Some(token)) = (span.resource, span.token) else { continue };
        if let Some(end) = ends.get(task)
            && end.token < token
        {
            let message = format!(
                "task {task} has run with token {token}, and at the end it has the older token {}",
                end.token
            );
            findings.violations.push(Violation { message, excerpt: check.excerpt(&[span.id()]) });
        }
    }
}

fn a_key_has_one_task(check: &Check<'_>, ends: &HashMap<&str, Final<'_>>, findings: &mut Findings) {
    let mut asked = HashMap::new();
    let mut owners = HashMap::new();
    for record in &check.history.records {
        match &record.event {
            Event::Enqueue { op, queue, key: Some(key) } => {
                asked.insert((record.process, *op), (queue.as_str(), key.as_str()));
            }
            Event::Enqueued { op, task, .. } => {
                let id = (record.process, *op);
                let Some(key) = asked.get(&id) else { continue };
                findings.facts += 1;
                // The key of a failed execution may be used again.
                let is_failed = ends.get(task.as_str()).is_some_and(|end| end.state == "failed");
                if is_failed {
                    continue;
                }
                let (owner, first) = *owners.entry(*key).or_insert((task.as_str(), id));
                if owner != task.as_str() {
                    let message =
                        format!("key '{}' of queue '{}' has two tasks: {owner} and {task}", key.1, key.0);
                    findings.violations.push(Violation { message, excerpt: check.excerpt(&[first, id]) });
                }
            }
            _ => {}
        }
    }
}
