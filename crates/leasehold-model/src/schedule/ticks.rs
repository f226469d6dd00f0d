//! Occurrences of a cron expression in a time zone, including the days on which clocks change.
//!
//! The search runs on a clock that never changes; each match is a local time. The instant of that
//! local time depends on the expression, by the rule of Vixie cron:
//!
//! - An expression whose second, minute and hour contain no `*` names local times, single ones or a
//!   list. Each of them ticks once: the first time if the clock shows it twice, and right after the
//!   gap if the clock skips it.
//! - Any other expression follows elapsed time: it ticks whenever the clock shows a matching time,
//!   twice if the clock shows it twice, and not at all if the clock skips it.

use std::sync::Arc;

use croner::Cron;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{Timestamp as Instant, ToSpan, Zoned};

use crate::Timestamp;

/// Upper bound of a clock change, in hours.
const WIDEST_HOURS: i64 = 26;

pub(crate) struct Ticks {
    cron: Arc<Cron>,
    zone: TimeZone,
    /// Whether the expression names local times.
    fixed: bool,
}

impl Ticks {
    pub(crate) fn new(text: &str, cron: Arc<Cron>, zone: TimeZone) -> Self {
        Self { cron, zone, fixed: is_fixed(text) }
    }

    pub(crate) fn after(&self, time: Timestamp, count: usize) -> Vec<Timestamp> {
        let Some(after) = instant(time) else { return Vec::new() };
        let mut ticks = Vec::new();
        if self.fixed {
            self.fixed_after(after, count, &mut ticks);
        } else {
            self.passing_after(after, count, &mut ticks);
        }
        ticks.into_iter().filter_map(timestamp).collect()
    }

    /// Returns the last `count` ticks after `after` and up to `time`, oldest first. The cost does
    /// not grow with the time between the two.
    pub(crate) fn until(&self, time: Timestamp, after: Timestamp, count: usize) -> Vec<Timestamp> {
        let (Some(until), Some(after)) = (instant(time), instant(after)) else { return Vec::new() };
        let mut ticks = Vec::new();
        if self.fixed {
            self.fixed_until(until, after, count, &mut ticks);
        } else {
            self.passing_until(until, after, count, &mut ticks);
        }
        ticks.into_iter().filter_map(timestamp).collect()
    }

    // --- local times ---

    fn fixed_after(&self, after: Instant, count: usize, ticks: &mut Vec<Instant>) {
        // Local times that the clock skipped or showed twice up to `WIDEST_HOURS` ago may tick only now.
        let mut local = self.local(after).saturating_sub(WIDEST_HOURS.hours());
        if self
            .zone
            .preceding(next_second(after))
            .next()
            .is_none_or(|last| last.timestamp() < hours_before(after))
        {
            local = self.local(after);
        }
        let (mut next, mut last) = (self.next(local, true), None);
        while let Some(local) = next.filter(|_| ticks.len() < count) {
            let tick = self.place(local, last);
            last = Some(tick);
            if tick.instant() > after {
                ticks.push(tick.instant());
            }
            next = self.next(local, false);
        }
    }

    fn fixed_until(&self, until: Instant, after: Instant, count: usize, ticks: &mut Vec<Instant>) {
        // The clock may already have shown local times that it is about to show a second time.
        let local = self.local(until).saturating_add(WIDEST_HOURS.hours());
        let (mut previous, mut found) = (self.previous(local, true), Vec::new());
        while let Some(local) = previous.filter(|_| found.len() < count) {
            let (at, _) = self.instant_of(local);
            if at < after {
                break;
            }
            if at <= until {
                found.push(local);
            }
            previous = self.previous(local, false);
        }
        let mut last = None;
        for local in found.into_iter().rev() {
            let place = self.place(local, last);
            last = Some(place);
            ticks.extend(Some(place.instant()).filter(|tick| *tick > after && *tick <= until));
        }
    }

    /// Returns the place of a local time. `before` is the place of the previous local time, if known.
    fn place(&self, local: DateTime, before: Option<Place>) -> Place {
        let (at, gap) = self.instant_of(local);
        let turn = match (gap, before) {
            (None, _) => 0,
            (Some(_), Some(before)) => {
                if before.at == at {
                    before.turn + 1
                } else {
                    0
                }
            }
            (Some(from), None) => self.count(from, local),
        };
        Place { at, turn }
    }

    /// Returns the instant of a local time and, if that instant is the end of a gap, the local time
    /// at which the gap begins.
    fn instant_of(&self, local: DateTime) -> (Instant, Option<DateTime>) {
        match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => {
                let at = instant_of(local, offset);
                let changed =
                    self.zone.preceding(next_second(at)).next().filter(|last| last.timestamp() == at);
                (at, changed.and_then(|_| self.gap_before(at)))
            }
            AmbiguousOffset::Fold { before: first, .. } => (instant_of(local, first), None),
            AmbiguousOffset::Gap { before: offset, .. } => {
                let inside = instant_of(local, offset);
                let end =
                    self.zone.preceding(next_second(inside)).next().map_or(inside, |last| last.timestamp());
                (end, self.gap_before(end))
            }
        }
    }

    /// Returns the local time at which the gap that ends at this instant begins.
    fn gap_before(&self, end: Instant) -> Option<DateTime> {
        let from = self.zone.to_offset(second_before(end));
        (self.zone.to_offset(end) > from).then(|| from.to_datetime(end))
    }

    /// Returns the number of matching local times from `from` (inclusive) to `before` (exclusive).
    fn count(&self, from: DateTime, before: DateTime) -> u32 {
        let (mut count, mut next) = (0, self.next(from, true));
        while let Some(earlier) = next.filter(|next| *next < before) {
            count += 1;
            next = self.next(earlier, false);
        }
        count
    }

    // --- elapsed time ---

    fn passing_after(&self, after: Instant, count: usize, ticks: &mut Vec<Instant>) {
        let (mut from, mut inclusive) = (after, false);
        loop {
            let offset = self.zone.to_offset(from);
            let change = self.zone.following(from).next().map(|change| change.timestamp());
            let mut next = self.next(offset.to_datetime(from), inclusive);
            let beyond = loop {
                let Some(local) = next.filter(|_| ticks.len() < count) else { return };
                let at = instant_of(local, offset);
                if change.is_some_and(|change| at >= change) {
                    break at;
                }
                ticks.push(at);
                next = self.next(local, false);
            };
            let Some(change) = change else { return };
            // There may be many more clock changes between this one and the next tick.
            let near = hours_before(beyond);
            let last = self.zone.preceding(near).next().map(|change| change.timestamp());
            (from, inclusive) = (last.map_or(change, |last| last.max(change)), true);
        }
    }

    fn passing_until(&self, until: Instant, after: Instant, count: usize, ticks: &mut Vec<Instant>) {
        let (mut until, mut inclusive, mut found) = (until, true, Vec::new());
        'done: while until > after {
            let inside = if inclusive { until } else { second_before(until) };
            let offset = self.zone.to_offset(inside);
            let change = self.zone.preceding(next_second(inside)).next().map(|change| change.timestamp());
            let mut previous = self.previous(offset.to_datetime(until), inclusive);
            let beyond = loop {
                let Some(local) = previous.filter(|_| found.len() < count) else { break 'done };
                let at = instant_of(local, offset);
                if change.is_some_and(|change| at < change) {
                    break at;
                }
                if at <= after {
                    break 'done;
                }
                found.push(at);
                previous = self.previous(local, false);
            };
            let Some(change) = change else { break };
            let near = hours_after(beyond);
            let first = self.zone.following(near).next().map(|change| change.timestamp());
            (until, inclusive) = (first.map_or(change, |first| first.min(change)), false);
        }
        ticks.extend(found.into_iter().rev());
    }

    // --- search on a clock that never changes ---

    fn next(&self, local: DateTime, inclusive: bool) -> Option<DateTime> {
        // A local time may have a fraction of a second; a cron expression never does.
        let start = unchanged(local)?;
        self.cron
            .find_next_occurrence(&start, inclusive && local.subsec_nanosecond() == 0)
            .ok()
            .map(|at| at.datetime())
    }

    fn previous(&self, local: DateTime, inclusive: bool) -> Option<DateTime> {
        let start = unchanged(local)?;
        let inclusive = inclusive || local.subsec_nanosecond() != 0;
        self.cron.find_previous_occurrence(&start, inclusive).ok().map(|at| at.datetime())
    }

    fn local(&self, at: Instant) -> DateTime {
        self.zone.to_offset(at).to_datetime(at)
    }
}

/// Position of a local time. All skipped local times come at the end of the gap, one after the other.
#[derive(Debug, Clone, Copy)]
struct Place {
    at: Instant,
    turn: u32,
}

impl Place {
    fn instant(self) -> Instant {
        self.at.saturating_add(i64::from(self.turn).microseconds()).unwrap_or(self.at)
    }
}

/// Returns whether the second, minute and hour of the expression contain neither `*` nor `?`.
fn is_fixed(text: &str) -> bool {
    if text.trim_start().starts_with('@') {
        return !text.trim().eq_ignore_ascii_case("@hourly");
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let of_the_day = fields.len().saturating_sub(3);
    fields[..of_the_day].iter().all(|field| !field.contains(['*', '?']))
}

fn unchanged(local: DateTime) -> Option<Zoned> {
    let whole = local.with().subsec_nanosecond(0).build().ok()?;
    whole.to_zoned(TimeZone::UTC).ok()
}

fn instant(time: Timestamp) -> Option<Instant> {
    i64::try_from(time.as_micros()).ok().and_then(|micros| Instant::from_microsecond(micros).ok())
}

fn timestamp(at: Instant) -> Option<Timestamp> {
    u64::try_from(at.as_microsecond()).ok().map(Timestamp::from_micros)
}

fn instant_of(local: DateTime, offset: Offset) -> Instant {
    offset.to_timestamp(local).unwrap_or(Instant::MAX)
}

fn hours_before(at: Instant) -> Instant {
    at.saturating_sub(WIDEST_HOURS.hours()).unwrap_or(Instant::MIN)
}

fn hours_after(at: Instant) -> Instant {
    at.saturating_add(WIDEST_HOURS.hours()).unwrap_or(Instant::MAX)
}

fn next_second(at: Instant) -> Instant {
    at.saturating_add(1.second()).unwrap_or(Instant::MAX)
}

fn second_before(at: Instant) -> Instant {
    at.saturating_sub(1.second()).unwrap_or(Instant::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::definition::CronExpression;
    use std::collections::BTreeSet;

    const ZONES: [&str; 12] = [
        "America/New_York",
        "Europe/Berlin",
        "Australia/Lord_Howe",
        "Australia/Sydney",
        "America/St_Johns",
        "Atlantic/Azores",
        "Africa/Cairo",
        "Africa/Casablanca",
        "Pacific/Chatham",
        "America/Santiago",
        "Asia/Kathmandu",
        "UTC",
    ];
    const MINUTE: i64 = 60;
    const DAY: i64 = 24 * 3600;

    fn ticks(text: &str, zone: &str) -> Ticks {
        Ticks::new(text, CronExpression::new(text).unwrap().parsed(), TimeZone::get(zone).unwrap())
    }

    /// Reference implementation that checks every minute, for expressions with only numbers, lists,
    /// `*` and `*/n` for minute and hour.
    struct Naive {
        minutes: BTreeSet<i8>,
        hours: BTreeSet<i8>,
        fixed: bool,
    }

    impl Naive {
        fn new(text: &str) -> Self {
            let field = |text: &str, most: i8| -> BTreeSet<i8> {
                match text.split_once("*/") {
                    Some((_, step)) => (0..most).step_by(step.parse().unwrap()).collect(),
                    None if text == "*" => (0..most).collect(),
                    None => text.split(',').map(|number| number.parse().unwrap()).collect(),
                }
            };
            let fields: Vec<&str> = text.split(' ').collect();
            let fixed = !fields[0].contains('*') && !fields[1].contains('*');
            Self { minutes: field(fields[0], 60), hours: field(fields[1], 24), fixed }
        }

        fn wants(&self, local: DateTime) -> bool {
            self.minutes.contains(&local.minute()) && self.hours.contains(&local.hour())
        }

        /// Returns all ticks from one second to another, in µs.
        fn ticks(&self, zone: &TimeZone, from: i64, to: i64) -> Vec<i64> {
            let at = |second| Instant::from_second(second).unwrap();
            let local = |second| zone.to_offset(at(second)).to_datetime(at(second));
            let minutes: Vec<(i64, DateTime)> =
                (from..to).step_by(60).map(|second| (second, local(second))).collect();
            if !self.fixed {
                let wanted = minutes.iter().filter(|(_, local)| self.wants(*local));
                return wanted.map(|(second, _)| second * 1_000_000).collect();
            }
            // Each local minute once: when the clock shows it first or, if skipped, when the clock
            // shows the first later one.
            let (mut found, mut shown, mut latest) = (Vec::<i64>::new(), BTreeSet::new(), minutes[0].1);
            for (second, local) in minutes {
                let mut come = vec![local];
                let mut skipped = latest.saturating_add(1.minute());
                while skipped < local {
                    come.insert(come.len() - 1, skipped);
                    skipped = skipped.saturating_add(1.minute());
                }
                latest = latest.max(local);
                let news = come.into_iter().filter(|local| shown.insert(*local) && self.wants(*local));
                found.extend((0..).zip(news).map(|(turn, _)| second * 1_000_000 + turn));
            }
            found
        }
    }

    /// Covers every clock change from 2024 to 2030 in all kinds of zones.
    #[test]
    fn ticks_are_those_that_looking_at_every_minute_finds() {
        let minutes = ["0", "30", "15,45", "0,1,59", "*", "*/20", "7"];
        let hours = ["2", "1,13", "2,3", "0,1,2,3,4", "0,23", "*", "*/2", "3"];
        let (begin, end) = (1_704_067_200, 1_924_992_000);
        let mut compared = 0;
        for name in ZONES {
            let zone = TimeZone::get(name).unwrap();
            let mut middles: Vec<i64> = zone
                .following(Instant::from_second(begin).unwrap())
                .map(|change| change.timestamp().as_second())
                .take_while(|change| *change < end)
                .collect();
            middles.push(1_750_000_020);
            for (at, middle) in middles.into_iter().enumerate() {
                // Each clock change checks a fifth of the expressions; five successive changes
                // check all of them.
                for (number, text) in
                    minutes.iter().flat_map(|m| hours.map(|h| format!("{m} {h} * * *"))).enumerate()
                {
                    if (number + at) % 5 != 0 {
                        continue;
                    }
                    let middle = middle - middle.rem_euclid(MINUTE);
                    let (from, to) = (middle - DAY, middle + DAY);
                    // Starts one day earlier, so that the reference knows which local times have been shown.
                    let naive = Naive::new(&text).ticks(&zone, from - DAY, to);
                    let micros = |second: i64| u64::try_from(second).unwrap() * 1_000_000;
                    let real = ticks(&text, name);
                    for start in
                        [from, middle - 2 * MINUTE, middle - 1, middle, middle + 1, middle + 40 * MINUTE]
                    {
                        let after = Timestamp::from_micros(micros(start));
                        let expected: Vec<u64> = naive
                            .iter()
                            .map(|tick| u64::try_from(*tick).unwrap())
                            .filter(|tick| *tick > micros(start))
                            .collect();
                        let numbers = |ticks: Vec<Timestamp>| -> Vec<u64> {
                            ticks.iter().map(|tick| tick.as_micros()).collect()
                        };
                        assert_eq!(
                            numbers(real.after(after, expected.len())),
                            expected,
                            "'{text}' in {name} after {after}"
                        );
                        // The last instant before the end, because the reference excludes the end itself.
                        let until = Timestamp::from_micros(micros(to) - 1);
                        assert_eq!(
                            numbers(real.until(until, after, usize::MAX)),
                            expected,
                            "'{text}' in {name} from {after} on"
                        );
                        let last = &expected[expected.len().saturating_sub(3)..];
                        assert_eq!(
                            numbers(real.until(until, after, 3)),
                            last,
                            "the last of '{text}' in {name}"
                        );
                        compared += expected.len();
                    }
                }
            }
        }
        assert!(compared > 10_000, "only {compared} ticks were compared");
    }

    #[test]
    fn what_costs_is_what_is_found_not_the_time_between() {
        let long_ago = Timestamp::from_micros(1);
        let now = Timestamp::from_micros(1_800_000_000_000_000);
        for (text, count) in
            [("* * * * * *", 1000), ("* * * * *", 1000), ("0 0 29 2 *", 14), ("*/5 0 29 2 *", 168)]
        {
            let found = ticks(text, "America/New_York").until(now, long_ago, 1000);
            assert_eq!(found.len(), count, "{text}");
            assert!(found.is_sorted_by(|one, other| one < other));
        }
    }

    #[test]
    fn a_field_without_a_star_is_fixed() {
        for (text, fixed) in [
            ("30 2,14 * * *", true),
            ("0-30 2 1 1 *", true),
            ("@daily", true),
            ("@hourly", false),
            ("*/30 2 * * *", false),
            ("30 * * * *", false),
            ("0 30 2 * * *", true),
            ("*/10 30 2 * * *", false),
        ] {
            assert_eq!(is_fixed(text), fixed, "{text}");
        }
    }
}
