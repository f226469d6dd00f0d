//! S6: a task has one attempt at a time, and none after its end. S7: each acknowledged task ends.
//! S8: a key has one task, and so has a tick of a schedule.

use std::collections::HashMap;

use super::exclusion::of_resources;
use super::findings::{Check, Findings};
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
    none_is_lost(check, &ends, findings);
    none_runs_after_its_end(check, &ends, findings);
    a_key_has_one_task(check, &ends, findings);
    a_tick_has_one_task(check, &ends, findings);
}

fn end(record: &Record) -> Option<(&str, Final<'_>)> {
    let Event::Final { task, state, token, terminal } = &record.event else { return None };
    Some((task.as_str(), Final { state, token: *token, is_terminal: *terminal }))
}

fn none_is_lost(check: &Check<'_>, ends: &HashMap<&str, Final<'_>>, findings: &mut Findings) {
    let is_complete = check.history.records.iter().any(|record| record.event == Event::Complete);
    let mut sent = HashMap::new();
    for record in &check.history.records {
        if let Event::Enqueue { op, .. } = &record.event {
            sent.insert((record.process, *op), record.at);
        }
        let Event::Enqueued { op, task, .. } = &record.event else { continue };
        findings.compared += u64::from(check.is_new(record.at));
        let sent = sent.get(&(record.process, *op)).copied().unwrap_or(record.at);
        let is_excused = |end: &Final<'_>| {
            if end.state == MISSING { check.may_lose(sent) } else { check.may_lose_parts() }
        };
        let message = match ends.get(task.as_str()) {
            Some(end) if end.is_terminal => continue,
            Some(end) if is_excused(end) => {
                findings.excused += u64::from(check.is_new(record.at));
                continue;
            }
            Some(end) if end.state == MISSING => {
                format!("task {task} was acknowledged and is lost: the store does not have it")
            }
            Some(end) => {
                format!("task {task} was acknowledged and does not end: it is {} at the end", end.state)
            }
            // Not recorded yet, or the coordinator has ended before.
            None if !is_complete => continue,
            None => format!("task {task} was acknowledged, and its end is not known"),
        };
        findings.report(check, message, &[(record.process, *op)]);
    }
}

fn none_runs_after_its_end(check: &Check<'_>, ends: &HashMap<&str, Final<'_>>, findings: &mut Findings) {
    for span in check.spans {
        let (Resource::Task(task), Some(token)) = (span.resource, span.token) else { continue };
        // A task that has not ended is reported elsewhere, and may have run after it was read.
        if let Some(end) = ends.get(task)
            && (end.is_terminal || end.state == MISSING)
            && end.token < token
        {
            // The last attempts at a task can be lost, and the task itself.
            if check.may_lose(span.requested) {
                findings.excused += u64::from(check.is_new(span.from));
                continue;
            }
            let message = format!(
                "task {task} has run with token {token}, and at the end it has the older token {}",
                end.token
            );
            findings.report(check, message, &[span.id()]);
        }
    }
}

fn a_key_has_one_task(check: &Check<'_>, ends: &HashMap<&str, Final<'_>>, findings: &mut Findings) {
    let mut requests = HashMap::new();
    let mut owners = HashMap::new();
    for record in &check.history.records {
        match &record.event {
            Event::Enqueue { op, queue, key: Some(key) } => {
                requests.insert((record.process, *op), (record.at, queue.as_str(), key.as_str()));
            }
            Event::Enqueued { op, task, .. } => {
                let id = (record.process, *op);
                let Some((sent, queue, key)) = requests.get(&id).copied() else { continue };
                findings.compared += u64::from(check.is_new(record.at));
                // The key of a failed execution may be used again.
                if ends.get(task.as_str()).is_none_or(|end| end.state == "failed") {
                    continue;
                }
                let (owner, owner_sent, first) =
                    *owners.entry((queue, key)).or_insert((task.as_str(), sent, id));
                if owner != task.as_str() && check.may_lose(owner_sent) {
                    findings.excused += u64::from(check.is_new(record.at));
                    owners.insert((queue, key), (task.as_str(), sent, id));
                } else if owner != task.as_str() {
                    let message = format!("key '{key}' of queue '{queue}' has two tasks: {owner} and {task}");
                    findings.report(check, message, &[first, id]);
                }
            }
            _ => {}
        }
    }
}

fn a_tick_has_one_task(check: &Check<'_>, ends: &HashMap<&str, Final<'_>>, findings: &mut Findings) {
    let mut owners: HashMap<(&str, &str), &str> = HashMap::new();
    for record in &check.history.records {
        let Event::Tick { schedule, tick, task } = &record.event else { continue };
        findings.compared += u64::from(check.is_new(record.at));
        let Some(task) = task else {
            let message = format!("tick {tick} of schedule '{schedule}' has no task");
            findings.report_record(message, record);
            continue;
        };
        let owner = *owners.entry((schedule, tick)).or_insert(task);
        if owner != task.as_str() {
            let message = format!("tick {tick} of schedule '{schedule}' has two tasks: {owner} and {task}");
            findings.report_record(message, record);
        }
        if ends.get(task.as_str()).is_some_and(|end| !end.is_terminal) {
            let message = format!("task {task} of tick {tick} of schedule '{schedule}' does not end");
            findings.report_record(message, record);
        }
    }
}
