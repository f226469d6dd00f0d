//! Schedules: recurring tasks, defined by a cron expression in a time zone.

use std::str::FromStr;
use std::sync::Arc;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::ticks::Ticks;
use crate::name::text_conversions;
use crate::{
    LockName, NewTask, Payload, Priority, QueueName, RetryPolicy, ScheduleName, TaskId, TaskKey, Timestamp,
    Ttl, ValidationError, ValueKind, When,
};

/// Maximum delay at which a tick does not count as missed: a running worker polls the schedules
/// every two seconds, and a response of the store may take some time.
const LATE: Ttl = Ttl::from_secs(3);

/// Maximum age at which the newest tick does not count as missed if a worker was already waiting
/// for it: the store may have been unavailable in between.
const AWAITED: Ttl = Ttl::from_secs(60);

/// Maximum number of missed ticks that are made up for.
const MAX_MISSED: usize = 1000;

/// Maximum length of a schedule name in bytes; leaves space in a task key for the time of the tick.
pub(crate) const LONGEST_NAME: usize = 200;

/// Definition of a recurring task.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Schedule {
    /// Name of the schedule.
    pub name: ScheduleName,
    /// Cron expression that defines the ticks.
    pub cron: CronExpression,
    /// Time zone of the cron expression.
    pub zone: TimeZoneName,
    /// Policy for missed ticks: ticks at which no worker was running.
    #[serde(default)]
    pub missed: MisfirePolicy,
    /// Queue of the tasks.
    pub queue: QueueName,
    /// Payload of the tasks.
    #[serde(default)]
    pub payload: Payload,
    /// Priority of the tasks.
    #[serde(default)]
    pub priority: Priority,
    /// Lock under which the tasks run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockName>,
    /// Retry policy of each task.
    #[serde(default)]
    pub retries: RetryPolicy,
    /// Maximum run time of one attempt at a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Ttl>,
    /// Maximum delay of a task after its tick. The actual delay is derived from a hash of the
    /// schedule's name and the tick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Ttl>,
    /// Whether the schedule is paused; a paused schedule has no ticks.
    #[serde(default)]
    pub paused: bool,
    /// Time up to which all ticks have been processed.
    pub since: Timestamp,
}

/// Policy for missed ticks: ticks at which no worker was running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MisfirePolicy {
    /// One task for each missed tick, up to 1,000.
    #[default]
    #[serde(rename = "all")]
    RunAll,
    /// One task for the last missed tick.
    #[serde(rename = "last")]
    RunLast,
    /// No task for missed ticks.
    #[serde(rename = "none")]
    Skip,
}

impl FromStr for MisfirePolicy {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        match text {
            "all" => Ok(Self::RunAll),
            "last" => Ok(Self::RunLast),
            "none" => Ok(Self::Skip),
            _ => Err(ValidationError::new(
                ValueKind::Policy,
                format!("'{text}' is not a policy for missed ticks; write all, last or none"),
            )),
        }
    }
}

impl Schedule {
    /// Creates a schedule with default settings that begins at `since`.
    pub fn new(
        name: ScheduleName,
        cron: CronExpression,
        queue: QueueName,
        payload: Payload,
        since: Timestamp,
    ) -> Result<Self, ValidationError> {
        if name.as_str().len() > LONGEST_NAME {
            let bytes = name.as_str().len();
            let message = format!("the schedule name has {bytes} bytes; {LONGEST_NAME} is the most");
            return Err(ValidationError::new(ValueKind::Name, message));
        }
        let (zone, missed, priority, retries) = Default::default();
        Ok(Self {
            name,
            cron,
            zone,
            missed,
            queue,
            payload,
            priority,
            lock: None,
            retries,
            timeout: None,
            jitter: None,
            paused: false,
            since,
        })
    }

    /// Returns the first tick after `after`; `None` if the search finds no tick.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.after(after, 1).pop()
    }

    /// Returns the next `count` ticks after `after`; empty while the schedule is paused.
    pub fn ahead(&self, after: Timestamp, count: usize) -> Vec<Timestamp> {
        if self.paused { Vec::new() } else { self.after(after, count) }
    }

    fn after(&self, after: Timestamp, count: usize) -> Vec<Timestamp> {
        self.ticks().map_or_else(Vec::new, |ticks| ticks.after(after, count))
    }

    fn ticks(&self) -> Option<Ticks> {
        Some(Ticks::new(self.cron.as_str(), self.cron.parsed(), self.zone.get()?))
    }

    /// Returns the ticks to process at `now`, oldest first, and the time up to which these are all
    /// ticks. `polled_at` is the time of the calling worker's previous poll of the schedules, if
    /// there was one.
    ///
    /// A tick was missed if no worker was running to see it. A worker that was running before the
    /// tick has seen it if the tick is at most three seconds late, or if it is the newest tick and
    /// at most a minute late. A worker that has just started has seen only the newest tick, and
    /// only if that is at most three seconds old: a running worker would already have processed any
    /// earlier tick.
    pub fn due(&self, now: Timestamp, polled_at: Option<Timestamp>) -> (Vec<Timestamp>, Timestamp) {
        let mut ticks = self.ticks().map_or_else(Vec::new, |ticks| ticks.until(now, self.since, MAX_MISSED));
        let Some(newest) = ticks.last().copied() else { return (ticks, self.since) };
        let was_seen = |tick: &Timestamp| {
            let (age, is_newest) = (now.since(*tick), *tick == newest);
            let was_awaited = polled_at.is_some_and(|polled_at| polled_at <= *tick);
            match (was_awaited, is_newest) {
                (true, true) => age <= AWAITED.as_duration(),
                (true, false) | (false, true) => age <= LATE.as_duration(),
                (false, false) => false,
            }
        };
        match self.missed {
            MisfirePolicy::RunAll => {}
            MisfirePolicy::RunLast => ticks.retain(|tick| *tick == newest || was_seen(tick)),
            MisfirePolicy::Skip => ticks.retain(was_seen),
        }
        (ticks, newest)
    }

    /// Maximum jitter: one day.
    pub const MAX_JITTER: Ttl = Ttl::from_secs(24 * 3600);

    /// Checks that a jitter is not longer than [`MAX_JITTER`](Self::MAX_JITTER).
    pub fn check_jitter(jitter: Ttl) -> Result<Ttl, ValidationError> {
        if jitter <= Self::MAX_JITTER {
            return Ok(jitter);
        }
        let message = format!("a jitter of {jitter} is too long; {} is the longest", Self::MAX_JITTER);
        Err(ValidationError::new(ValueKind::Duration, message))
    }

    /// Returns the time at which the task of a tick runs: the tick plus the jitter. Every process
    /// computes the same time, and schedules with the same ticks get different times.
    pub fn run_at(&self, tick: Timestamp) -> Timestamp {
        let Some(jitter) = self.jitter else { return tick };
        let hash = Sha256::new()
            .chain_update(self.name.as_str())
            .chain_update([0])
            .chain_update(tick.as_micros().to_be_bytes())
            .finalize();
        let number = hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
        Timestamp::from_micros(tick.as_micros().saturating_add(number % jitter.as_micros().max(1)))
    }

    /// Returns the task for one tick. Its key contains the tick, so the task is added only once
    /// even if several workers see the tick.
    pub fn task(&self, tick: Timestamp, id: TaskId) -> Result<NewTask, ValidationError> {
        // Ticks that fall together at the end of a clock gap are less than a second apart.
        let whole = tick.as_micros().is_multiple_of(1_000_000);
        let tick_text = if whole { tick.to_string() } else { format!("{tick:#}") };
        let key = TaskKey::new(format!("schedule {} {tick_text}", self.name))?;
        let new = NewTask {
            when: When::At(self.run_at(tick)),
            priority: self.priority,
            key: Some(key),
            lock: self.lock.clone(),
            retries: self.retries,
            timeout: self.timeout,
            ..NewTask::new(id, self.queue.clone(), self.payload.clone())
        };
        new.as_execution()
    }
}

/// Cron expression: minute, hour, day of month, month, day of week; a sixth field in front holds
/// the seconds. `@daily` and similar names are also accepted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CronExpression {
    text: String,
    parsed: Arc<Cron>,
}

impl CronExpression {
    /// Parses the expression and checks that it has at least one occurrence.
    pub fn new(text: impl Into<String>) -> Result<Self, ValidationError> {
        let text = text.into();
        let wrong = |why: &str| {
            ValidationError::new(
                ValueKind::Cron,
                format!(
                    "'{text}' is not a valid cron expression: {why}; write for example '0 3 * * *' for 3:00 each day"
                ),
            )
        };
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let parsed = parser.parse(&text).map_err(|error| wrong(error.to_string().trim_end_matches('.')))?;
        let start = jiff::Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC);
        parsed.find_next_occurrence(&start, false).map_err(|_| wrong("that never happens"))?;
        Ok(Self { text, parsed: Arc::new(parsed) })
    }

    /// Returns the text of the expression.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn parsed(&self) -> Arc<Cron> {
        self.parsed.clone()
    }
}

text_conversions!(CronExpression);

/// Name of an IANA time zone, such as `Europe/Berlin`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TimeZoneName(String);

impl TimeZoneName {
    /// Checks that the time zone exists.
    pub fn new(name: impl Into<String>) -> Result<Self, ValidationError> {
        let name = name.into();
        match TimeZone::get(&name) {
            Ok(_) => Ok(Self(name)),
            Err(_) => Err(ValidationError::new(
                ValueKind::TimeZone,
                format!("there is no time zone '{name}'; write for example Europe/Berlin or UTC"),
            )),
        }
    }

    /// Returns the name of the time zone.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn get(&self) -> Option<TimeZone> {
        TimeZone::get(&self.0).ok()
    }
}

impl Default for TimeZoneName {
    fn default() -> Self {
        Self("UTC".to_owned())
    }
}

text_conversions!(TimeZoneName);

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        let time: jiff::Timestamp = text.parse().unwrap();
        Timestamp::from_micros(u64::try_from(time.as_microsecond()).unwrap())
    }

    fn schedule(cron: &str, zone: &str, since: &str) -> Schedule {
        let (name, queue) = (ScheduleName::new("s").unwrap(), QueueName::new("q").unwrap());
        let cron = CronExpression::new(cron).unwrap();
        let schedule = Schedule::new(name, cron, queue, Payload::default(), time(since)).unwrap();
        Schedule { zone: TimeZoneName::new(zone).unwrap(), ..schedule }
    }

    fn ticks(schedule: &Schedule, until: &str) -> Vec<String> {
        schedule.due(time(until), None).0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_daily_tick_follows_the_zone_through_the_year() {
        let daily = schedule("0 9 * * *", "Europe/Berlin", "2024-03-30T00:00:00Z");
        let expected = ["2024-03-30T08:00:00Z", "2024-03-31T07:00:00Z", "2024-04-01T07:00:00Z"];
        assert_eq!(ticks(&daily, "2024-04-02T00:00:00Z"), expected);
    }

    /// On 31 March 2024 in Berlin 2:00 to 2:59 do not exist; on 27 October they occur twice.
    #[test]
    fn a_fixed_time_ticks_once_on_the_day_the_clock_changes() {
        let at_half_past_two = |since| schedule("30 2 * * *", "Europe/Berlin", since);
        let spring = ticks(&at_half_past_two("2024-03-30T02:00:00Z"), "2024-04-01T01:00:00Z");
        assert_eq!(spring.len(), 2, "{spring:?}");
        assert!(spring[0].starts_with("2024-03-31T01:"), "right after the gap: {spring:?}");
        assert_eq!(spring[1], "2024-04-01T00:30:00Z");
        let autumn = ticks(&at_half_past_two("2024-10-26T02:00:00Z"), "2024-10-28T02:00:00Z");
        assert_eq!(autumn.len(), 2, "{autumn:?}");
        assert_eq!(autumn[1], "2024-10-28T01:30:00Z");
    }

    /// Applies to each time of a list: on 14 March 2027 in New York 2:00 to 2:59 do not exist; on 7
    /// November 1:00 to 1:59 occur twice.
    #[test]
    fn a_list_of_fixed_times_ticks_once_for_each() {
        let day = |cron, day: &str| {
            let schedule = schedule(cron, "America/New_York", &format!("{day}T05:00:00Z"));
            schedule.due(time(&format!("{day}T23:59:00Z")), None).0
        };
        let texts = |ticks: Vec<Timestamp>| ticks.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            texts(day("30 2,14 * * *", "2027-03-14")),
            ["2027-03-14T07:00:00Z", "2027-03-14T18:30:00Z"]
        );
        let skipped = day("15,45 2 * * *", "2027-03-14");
        assert_eq!(texts(skipped.clone()), ["2027-03-14T07:00:00Z", "2027-03-14T07:00:00Z"]);
        let hourly = schedule("15,45 2 * * *", "America/New_York", "2027-03-14T05:00:00Z");
        let id = TaskId::from_uuid(uuid::Uuid::nil());
        let key = |tick| hourly.task(tick, id).unwrap().key.unwrap();
        assert_ne!(key(skipped[0]), key(skipped[1]), "two tasks");
        assert_eq!(
            texts(day("30 1,13 * * *", "2027-11-07")),
            ["2027-11-07T05:30:00Z", "2027-11-07T18:30:00Z"]
        );
    }

    #[test]
    fn an_interval_ticks_through_the_change_of_the_clock() {
        for (since, until) in [
            ("2024-03-30T23:00:00Z", "2024-03-31T05:00:00Z"),
            ("2024-10-26T22:00:00Z", "2024-10-27T04:00:00Z"),
        ] {
            let every = schedule("*/30 * * * *", "Europe/Berlin", since);
            assert_eq!(ticks(&every, until).len(), 12, "every half hour from {since}");
        }
    }

    #[test]
    fn every_tick_is_seen_once_however_often_one_looks() {
        let mut every = schedule("*/20 * * * * *", "UTC", "2024-05-01T00:00:00Z");
        let mut seen = Vec::new();
        for second in (0..=120).step_by(7) {
            let now = Timestamp::from_micros(time("2024-05-01T00:00:00Z").as_micros() + second * 1_000_000);
            let (ticks, upto) = every.due(now, None);
            seen.extend(ticks);
            every.since = upto;
        }
        assert_eq!(seen.len(), 5);
        assert!(seen.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn missed_ticks_are_made_up_for_as_wanted() {
        let mut hourly = schedule("0 * * * *", "UTC", "2024-05-01T00:30:00Z");
        let (at_once, late) = ("2024-05-01T05:00:01Z", "2024-05-01T05:00:10Z");
        assert_eq!(ticks(&hourly, late).len(), 5);
        hourly.missed = MisfirePolicy::RunLast;
        for now in [at_once, late, "2024-05-01T05:30:00Z"] {
            assert_eq!(ticks(&hourly, now), ["2024-05-01T05:00:00Z"], "{now}");
        }
        hourly.missed = MisfirePolicy::Skip;
        assert_eq!(ticks(&hourly, at_once), ["2024-05-01T05:00:00Z"]);
        for now in [late, "2024-05-01T05:30:00Z"] {
            assert_eq!(ticks(&hourly, now), [""; 0], "{now}");
            assert_eq!(hourly.due(time(now), None).1, time("2024-05-01T05:00:00Z"), "and that was that");
        }
    }

    /// Regardless of their age: a worker that starts does not run the ticks that accumulated within
    /// a few seconds.
    #[test]
    fn ticks_without_a_worker_are_missed_at_any_age() {
        let mut often = schedule("*/3 * * * * *", "UTC", "2024-05-01T00:00:00Z");
        let now = "2024-05-01T00:00:20Z";
        assert_eq!(ticks(&often, now).len(), 6);
        often.missed = MisfirePolicy::RunLast;
        assert_eq!(ticks(&often, now), ["2024-05-01T00:00:18Z"]);
        often.missed = MisfirePolicy::Skip;
        assert_eq!(ticks(&often, now), ["2024-05-01T00:00:18Z"], "this one may just have come");
        let mut slow = schedule("*/10 * * * * *", "UTC", "2024-05-01T00:00:00Z");
        slow.missed = MisfirePolicy::Skip;
        assert_eq!(ticks(&slow, "2024-05-01T00:00:25Z"), [""; 0]);
    }

    #[test]
    fn a_worker_that_was_running_has_seen_a_tick_that_is_late() {
        let mut every = schedule("* * * * * *", "UTC", "2024-05-01T00:00:00Z");
        every.missed = MisfirePolicy::Skip;
        let seen = |schedule: &Schedule, polled_at: &str, now: &str| {
            schedule.due(time(now), Some(time(polled_at))).0.len()
        };
        let before = "2024-05-01T00:00:00Z";
        assert_eq!(seen(&every, before, "2024-05-01T00:00:02Z"), 2, "a second late");
        assert_eq!(seen(&every, before, "2024-05-01T00:00:20Z"), 4, "the store was away: no pile");
        let mut hourly = schedule("0 * * * *", "UTC", "2024-05-01T00:30:00Z");
        hourly.missed = MisfirePolicy::Skip;
        let before = "2024-05-01T00:59:58Z";
        assert_eq!(seen(&hourly, before, "2024-05-01T01:00:40Z"), 1, "the store was away");
        assert_eq!(seen(&hourly, before, "2024-05-01T01:02:00Z"), 0, "for too long");
        assert_eq!(seen(&hourly, "2024-05-01T01:00:30Z", "2024-05-01T01:00:40Z"), 0, "it was not there");
    }

    #[test]
    fn no_more_than_a_thousand_are_made_up_for() {
        let every = schedule("* * * * *", "UTC", "2024-05-01T00:00:00Z");
        let (ticks, upto) = every.due(time("2024-05-03T00:00:00Z"), None);
        assert_eq!((ticks.len(), upto), (1000, time("2024-05-03T00:00:00Z")));
        let every = schedule("* * * * * *", "UTC", "1970-01-01T00:00:01Z");
        assert_eq!(every.due(time("2024-05-03T00:00:00Z"), None).0.len(), 1000);
    }

    #[test]
    fn nonsense_is_refused_in_words() {
        for text in ["", "* * *", "61 * * * *", "0 0 30 2 *", "hello", "* * * * * * *", "0 25 * * *"] {
            let error = CronExpression::new(text).unwrap_err();
            assert!(error.to_string().contains("is not a valid cron expression"), "{text}: {error}");
        }
        assert!(
            TimeZoneName::new("Mars/Olympus")
                .unwrap_err()
                .to_string()
                .contains("no time zone 'Mars/Olympus'")
        );
        for text in ["*/5 * * * *", "@daily", "0 12 * * MON-FRI", "0 0 L * *", "*/10 * * * * *"] {
            assert!(CronExpression::new(text).is_ok(), "{text}");
        }
        let long = ScheduleName::new("x".repeat(201)).unwrap();
        let (cron, queue) = (CronExpression::new("@daily").unwrap(), QueueName::new("q").unwrap());
        assert!(Schedule::new(long, cron, queue, Payload::default(), Timestamp::default()).is_err());
    }

    #[test]
    fn jitter_moves_the_task_and_not_the_tick() {
        let plain = schedule("@hourly", "UTC", "2024-05-01T00:00:00Z");
        let jitter = Ttl::from_secs(30);
        let one = Schedule { jitter: Some(jitter), ..plain.clone() };
        let two = Schedule { name: ScheduleName::new("t").unwrap(), ..one.clone() };
        let (ticks, _) = one.due(time("2024-05-02T00:00:00Z"), None);
        assert_eq!(ticks, plain.due(time("2024-05-02T00:00:00Z"), None).0, "the ticks are the same");
        let id = TaskId::from_uuid(uuid::Uuid::nil());
        let mut late = std::collections::BTreeSet::new();
        for tick in ticks {
            let (jittered, exact) = (one.task(tick, id).unwrap(), plain.task(tick, id).unwrap());
            assert_eq!(jittered.key, exact.key, "every worker that sees the tick adds the same task");
            assert_eq!((&exact.when, one.run_at(tick)), (&When::At(tick), one.run_at(tick)));
            let run_at = one.run_at(tick);
            assert!(tick <= run_at && run_at < tick.plus(jitter), "{tick} {run_at}");
            assert_ne!(run_at, two.run_at(tick), "another schedule has another time");
            late.insert(run_at.since(tick));
        }
        assert!(late.len() > 20, "{late:?}");
        assert!(Schedule::check_jitter(Ttl::from_secs(24 * 3600 + 1)).is_err());
    }

    #[test]
    fn a_task_is_keyed_by_its_tick() {
        let daily = schedule("@daily", "UTC", "2024-05-01T00:00:00Z");
        let id = TaskId::from_uuid(uuid::Uuid::nil());
        let task = daily.task(time("2024-05-02T00:00:00Z"), id).unwrap();
        assert_eq!(task.key.unwrap().as_str(), "schedule s 2024-05-02T00:00:00Z");
        assert_eq!(task.when, When::At(time("2024-05-02T00:00:00Z")));
    }
}
