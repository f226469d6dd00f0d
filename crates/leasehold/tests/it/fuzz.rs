//! Fuzz targets of what callers type: names, durations, times, ids, payloads, cron expressions, schedules.

use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::time::Duration;

use leasehold::fuzz_corpus;
use leasehold::model::{
    CronExpression, DeliveryId, EventName, Fingerprint, Holder, LeaseId, LockName, LockOp, LockRecord,
    MAX_JSON_DEPTH, Metadata, MisfirePolicy, Payload, QueueName, Reason, Schedule, ScheduleName, Task,
    TaskId, TaskKey, TaskOp, TimeZoneName, Timestamp, Token, TriggerId, Ttl, ValidationError, WorkerId,
    WorkflowName, format_duration, parse_duration,
};
use leasehold::testing::fuzz::{Shape, fuzz};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// 1 January 2024, 0:00 UTC.
const NOW: Timestamp = Timestamp::from_micros(1_704_067_200_000_000);

#[test]
fn names_are_parsed_as_they_are_displayed_or_refused_with_the_rule() {
    fuzz(fuzz_corpus!("names"), 5_000, |input| {
        let text = String::from_utf8_lossy(input);
        let shape = round_trip::<LockName>(&text);
        for other in [
            round_trip::<Holder>(&text),
            round_trip::<Reason>(&text),
            round_trip::<QueueName>(&text),
            round_trip::<ScheduleName>(&text),
            round_trip::<TaskKey>(&text),
            round_trip::<TriggerId>(&text),
            round_trip::<EventName>(&text),
            round_trip::<DeliveryId>(&text),
        ] {
            assert_eq!(other.is_ok(), shape.is_ok(), "all names have the same rule");
        }
        if let Ok(workflow) = WorkflowName::new(&text) {
            assert!(
                LockName::new(format!("workflow/{workflow}")).is_ok(),
                "the lock of a workflow has a name"
            );
        }
        Shape::of(&shape)
    });
}

#[test]
fn durations_are_parsed_as_they_are_displayed() {
    fuzz(fuzz_corpus!("durations"), 5_000, |input| {
        let text = String::from_utf8_lossy(input);
        let parsed = parse_duration(&text);
        if let Ok(duration) = parsed {
            let shown = format_duration(duration);
            let again = parse_duration(&shown).expect("a displayed duration is one");
            let least = duration / 10 * 9;
            assert!(again.saturating_add(Duration::from_millis(1)) >= least, "{shown} is not {duration:?}");
            // A longer one is not exact as a floating-point number.
            if duration < Duration::from_hours(1000 * 365 * 24) {
                assert!(again <= duration, "{shown} is longer than {duration:?}");
                assert_eq!(format_duration(again), shown);
            }
            if let Ok(ttl) = Ttl::new(duration) {
                assert_eq!(ttl.to_string(), shown);
                assert_eq!(Ttl::try_from(ttl.as_micros()), Ok(ttl));
                assert!((Ttl::MIN..=Ttl::MAX).contains(&ttl));
            }
        }
        names_what_is_wrong(&text, parsed)
    });
}

#[test]
fn times_ids_and_tokens_are_parsed_as_they_are_displayed() {
    fuzz(fuzz_corpus!("values"), 5_000, |input| {
        let text = String::from_utf8_lossy(input);
        let time = text.parse::<Timestamp>();
        if let Ok(time) = time {
            assert_eq!(format!("{time:#}").parse(), Ok(time));
        }
        let ids = (round_trip::<LeaseId>(&text), round_trip::<TaskId>(&text), round_trip::<WorkerId>(&text));
        if let Ok(id) = text.parse::<TaskId>() {
            assert_eq!(id.short().parse(), Ok(id));
        }
        Shape::of(&(names_what_is_wrong(&text, time), ids, round_trip::<Token>(&text)))
    });
}

#[test]
fn payloads_and_metadata_stay_as_they_were_written() {
    fuzz(fuzz_corpus!("payloads"), 3_000, |input| {
        let text = String::from_utf8_lossy(input);
        let metadata = serde_json::from_str::<Metadata>(&text).map_err(|error| error.to_string());
        if let Ok(metadata) = &metadata {
            let written = serde_json::to_string(metadata).unwrap();
            assert_eq!(serde_json::from_str::<Metadata>(&written).unwrap(), *metadata);
        }
        let payload = Payload::new(&text);
        if let Ok(payload) = &payload {
            assert_eq!(payload.as_str(), text);
            let written = serde_json::to_string(payload).unwrap();
            let read: Payload = serde_json::from_str(&written).unwrap();
            assert_eq!(
                read.as_str(),
                text.trim_matches([' ', '\n', '\r', '\t']),
                "the value itself is written"
            );
            assert_eq!(read.fingerprint(), payload.fingerprint(), "blanks do not count");
            if let Ok(value) = serde_json::from_str::<serde_json::Value>(&text) {
                let depth = depth(&value);
                assert!(depth <= MAX_JSON_DEPTH, "nested {depth} deep");
            }
            assert_eq!(Fingerprint::from_u64(payload.fingerprint().get()), payload.fingerprint());
        }
        Shape::of(&(metadata, names_what_is_wrong("", payload.map(|_| ()))))
    });
}

#[test]
fn cron_expressions_tick_in_order_or_are_refused() {
    fuzz(fuzz_corpus!("cron"), 2_000, |input| {
        // A line is an expression, optionally followed by '|' and a time zone.
        let text = String::from_utf8_lossy(input);
        let (cron, zone) = text.split_once('|').unwrap_or((&text, "UTC"));
        let cron = match CronExpression::new(cron) {
            Ok(cron) => cron,
            Err(error) => return Shape::of_refusal(&error, cron),
        };
        assert_eq!(CronExpression::new(cron.as_str()).as_ref(), Ok(&cron));
        let zone = match TimeZoneName::new(zone) {
            Ok(zone) => zone,
            Err(error) => return Shape::of_refusal(&error, zone),
        };
        let schedule = schedule(cron, zone);
        let ahead = schedule.ahead(NOW, 20);
        assert!(ahead.is_sorted_by(|a, b| a < b), "{ahead:?}");
        assert!(ahead.iter().all(|tick| *tick > NOW));
        // What lies ahead is due later.
        if let Some(last) = ahead.last() {
            let later = Schedule { since: NOW, missed: MisfirePolicy::RunAll, ..schedule.clone() };
            let (due, until) = later.due(*last, None);
            assert_eq!((due, until), (ahead.clone(), *last));
        }
        Shape::of(&(ahead.len(), schedule.next(NOW).is_some()))
    });
}

#[test]
fn schedules_are_read_as_they_are_written_and_their_ticks_become_tasks() {
    fuzz(fuzz_corpus!("schedules"), 2_000, |input| {
        let schedule = match serde_json::from_slice::<Schedule>(input) {
            Ok(schedule) => schedule,
            Err(error) => return Shape::of_text(&error),
        };
        let written = serde_json::to_vec(&schedule).unwrap();
        assert_eq!(serde_json::from_slice::<Schedule>(&written).unwrap(), schedule);
        let (due, until) = schedule.due(NOW, None);
        assert!(due.len() <= 1000 && due.is_sorted_by(|a, b| a < b), "{due:?}");
        assert!(due.iter().all(|tick| *tick <= NOW && *tick > schedule.since && *tick <= until));
        for tick in due.iter().take(3) {
            let task = schedule.task(*tick, TaskId::numbered(1).unwrap());
            assert!(schedule.run_at(*tick) >= *tick);
            if let Ok(task) = task {
                assert!(task.key.is_some());
            }
        }
        Shape::of(&schedule)
    });
}

/// A stored record may have been written by another program: on GitHub, by any user.
#[test]
fn rules_of_locks_hold_for_every_record_that_can_be_read() {
    fuzz(fuzz_corpus!("lock-rules"), 3_000, |input| {
        match serde_json::from_slice::<(LockRecord, LockOp, Timestamp)>(input) {
            Ok((before, op, now)) => {
                let mut record = before.clone();
                let applied = record.apply(&op, now);
                assert!(record.token >= before.token && record.token <= Token::MAX, "a token never falls");
                assert!(applied.changed || applied.events.is_empty(), "what happens changes the record");
                if !applied.changed {
                    assert_eq!(record, before);
                }
                Shape::of(&(applied, op))
            }
            Err(error) => Shape::of_text(&error),
        }
    });
}

#[test]
fn rules_of_tasks_hold_for_every_task_that_can_be_read() {
    fuzz(fuzz_corpus!("task-rules"), 3_000, |input| {
        match serde_json::from_slice::<(Task, TaskOp, Timestamp)>(input) {
            Ok((before, op, now)) => {
                let mut task = before.clone();
                let answer = task.apply(&op, now);
                assert!(task.token >= before.token && task.token <= Token::MAX, "a token never falls");
                assert!(task.events.len() <= Task::MAX_EVENTS.max(before.events.len()));
                Shape::of(&(Shape::of_text(&format!("{answer:?}")), op, task.state))
            }
            Err(error) => Shape::of_text(&error),
        }
    });
}

fn depth(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        serde_json::Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or_default(),
        _ => 0,
    }
}

/// Parses a text, and checks that the value is the same after it was displayed or serialized.
fn round_trip<T>(text: &str) -> Result<Shape, Shape>
where
    T: FromStr<Err = ValidationError> + Display + Serialize + DeserializeOwned + PartialEq + Debug,
{
    let parsed = text.parse::<T>();
    if let Ok(value) = &parsed {
        assert_eq!(value.to_string().parse::<T>().as_ref(), Ok(value));
        let json = serde_json::to_string(value).unwrap();
        assert_eq!(serde_json::from_str::<T>(&json).unwrap(), *value);
    }
    let is_ok = parsed.is_ok();
    let shape = names_what_is_wrong(text, parsed);
    if is_ok { Ok(shape) } else { Err(shape) }
}

/// Checks that an error has a text of bounded length that a terminal can show.
fn names_what_is_wrong<T: Debug>(text: &str, parsed: Result<T, ValidationError>) -> Shape {
    match parsed {
        Ok(value) => Shape::of(&value),
        Err(error) => {
            let shown = error.to_string();
            assert!(shown.len() > 10, "{shown}");
            assert!(!shown.contains(char::is_control) || text.contains(char::is_control), "{shown:?}");
            Shape::of_refusal(&error, text)
        }
    }
}

fn schedule(cron: CronExpression, zone: TimeZoneName) -> Schedule {
    let schedule = Schedule::new(
        "s".parse().unwrap(),
        cron,
        "q".parse().unwrap(),
        Payload::default(),
        Timestamp::from_micros(0),
    );
    Schedule { zone, ..schedule.unwrap() }
}
