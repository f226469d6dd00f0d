//! Time of a service without a clock that clients can query: the `Date` header of its responses, in
//! whole seconds.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::model::Timestamp;
use crate::store::support::mutex::lock;
use crate::store::{BootInstant, Clock, Time};

/// Rule that decides whether a lease has expired, on a service without a clock that clients can query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Judge {
    /// A lease has expired once this process has seen it unchanged for its whole duration. Needs no
    /// common clock, but never recovers the lease of a dead holder for processes that query once
    /// and exit.
    Watch,
    /// A lease has also expired once the `Date` of the service's responses is later than its end by
    /// more than the clocks of the service can differ. The default, with a margin of 30 s.
    Date {
        /// Maximum difference of those clocks, plus the maximum duration of a response.
        skew: Duration,
    },
}

/// Clocks of a service differ by much less; the rest covers slow responses and unknown causes.
impl Default for Judge {
    fn default() -> Self {
        Self::Date { skew: Duration::from_secs(30) }
    }
}

/// Estimate of the service's time.
#[derive(Debug, Clone)]
pub(crate) struct ServerClock {
    best: Arc<Mutex<Option<Best>>>,
    /// Fallback while no response had a `Date`.
    wall: Clock,
}

/// Response that gives the best bound.
#[derive(Debug, Clone, Copy)]
struct Best {
    /// Service's time minus this machine's boot clock, in µs.
    offset: i64,
    at: BootInstant,
}

/// Maximum age of the best response: after a longer time, the two clocks may have drifted apart.
const FRESH: Duration = Duration::from_mins(5);
/// Uncertainty of a date in whole seconds.
const RESOLUTION: Duration = Duration::from_secs(1);

impl ServerClock {
    pub(crate) fn new() -> Self {
        Self { best: Arc::default(), wall: Clock::system() }
    }

    /// Returns a lower bound of the service's time; `None` if no response had a `Date`.
    pub(crate) fn lower_bound(&self, at: BootInstant) -> Option<Timestamp> {
        let best = *lock(&self.best);
        best.map(|best| Timestamp::from_micros(at.as_micros().saturating_add_signed(best.offset)))
    }

    /// Returns an estimate of the current time.
    pub(crate) fn estimate(&self, at: BootInstant) -> Timestamp {
        self.lower_bound(at).unwrap_or_else(|| self.wall.now())
    }

    /// Returns the time for leases. With a skew, leases that ended before the lower bound have expired
    /// without being observed.
    pub(crate) fn time(&self, judge: Judge) -> Time {
        let at = BootInstant::now();
        let skew = match judge {
            Judge::Watch => None,
            Judge::Date { skew } => Some(skew),
        };
        let lower_bound = self.lower_bound(at).zip(skew).map(|(told, skew)| told.minus(skew + RESOLUTION));
        Time::Observed { estimate: self.estimate(at), lower_bound }
    }

    /// Returns how far the service's time is ahead of this machine's wall clock, in seconds.
    pub(crate) fn skew(&self, at: BootInstant) -> Option<i64> {
        let micros = |time: Timestamp| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        self.lower_bound(at).map(|told| (micros(told) - micros(self.wall.now())) / 1_000_000)
    }

    /// Records a response with this `Date` that arrived at `at`. The service made the response before
    /// it arrived, and its second may have been almost over: so the date is a lower bound of the
    /// time. The response with the highest bound is the best one.
    pub(crate) fn observe(&self, date: i64, at: BootInstant) {
        let here = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
        let offset = date.saturating_mul(1_000_000).saturating_sub(here);
        let mut best = lock(&self.best);
        if best.is_none_or(|best| best.offset <= offset || best.at.plus(FRESH) < at) {
            *best = Some(Best { offset, at });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> BootInstant {
        BootInstant::from_micros(micros)
    }

    #[test]
    fn it_is_never_later_than_the_service_and_gets_closer_with_every_answer() {
        let dates = ServerClock::new();
        assert_eq!(dates.lower_bound(at(0)), None);
        // The service's time is 1000.9 s when this machine's clock reads 5 s.
        dates.observe(1000, at(5_000_000));
        assert_eq!(dates.lower_bound(at(5_500_000)).unwrap().as_micros(), 1_000_500_000);
        dates.observe(1001, at(5_200_000));
        assert_eq!(dates.lower_bound(at(5_500_000)).unwrap().as_micros(), 1_001_300_000);
        dates.observe(1001, at(5_900_000));
        assert_eq!(dates.lower_bound(at(5_900_000)).unwrap().as_micros(), 1_001_700_000);
    }

    #[test]
    fn an_old_answer_is_not_believed_for_ever() {
        let dates = ServerClock::new();
        dates.observe(1000, at(0));
        dates.observe(1400, at(401_000_000));
        assert_eq!(dates.lower_bound(at(401_000_000)).unwrap().as_micros(), 1_400_000_000);
    }
}
