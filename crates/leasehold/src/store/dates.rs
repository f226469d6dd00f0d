//! The time of a service that has no clock to ask: the `Date` of its answers, in whole seconds.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::model::Timestamp;
use crate::store::{Clock, Moment};

/// What is known of the service's time.
#[derive(Debug, Clone)]
pub(crate) struct Dates {
    best: Arc<Mutex<Option<Best>>>,
    /// If the answers say nothing.
    wall: Clock,
}

/// The answer that tells most.
#[derive(Debug, Clone, Copy)]
struct Best {
    /// The service's time less this machine's boot clock, in µs.
    offset: i64,
    at: Moment,
}

/// So long an answer is believed: longer than that, two clocks drift apart.
const FRESH: Duration = Duration::from_mins(5);

impl Dates {
    pub(crate) fn new() -> Self {
        Self { best: Arc::default(), wall: Clock::system() }
    }

    /// The service's time, or a little earlier, if it ever told.
    pub(crate) fn told(&self, at: Moment) -> Option<Timestamp> {
        let best = *self.best.lock().unwrap_or_else(PoisonError::into_inner);
        best.map(|best| Timestamp::from_micros(at.as_micros().saturating_add_signed(best.offset)))
    }

    /// About now.
    pub(crate) fn about(&self, at: Moment) -> Timestamp {
        self.told(at).unwrap_or_else(|| self.wall.now())
    }

    /// How far the service's time is from this machine's, in seconds: more means later.
    pub(crate) fn ahead(&self, at: Moment) -> Option<i64> {
        let micros = |time: Timestamp| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        self.told(at).map(|told| (micros(told) - micros(self.wall.now())) / 1_000_000)
    }

    /// An answer that was made in the second `date` has arrived at `at`. It was made before, and the second may have
    /// been almost over: so this says that it is at least so late. The answer that says the latest tells most.
    pub(crate) fn hear(&self, date: i64, at: Moment) {
        let here = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
        let offset = date.saturating_mul(1_000_000).saturating_sub(here);
        let mut best = self.best.lock().unwrap_or_else(PoisonError::into_inner);
        if best.is_none_or(|best| best.offset <= offset || best.at.plus(FRESH) < at) {
            *best = Some(Best { offset, at });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Moment {
        Moment::from_micros(micros)
    }

    #[test]
    fn it_is_never_later_than_the_service_and_gets_closer_with_every_answer() {
        let dates = Dates::new();
        assert_eq!(dates.told(at(0)), None);
        // The service's time is 1000.9 s when this machine's clock says 5 s.
        dates.hear(1000, at(5_000_000));
        assert_eq!(dates.told(at(5_500_000)).unwrap().as_micros(), 1_000_500_000);
        dates.hear(1001, at(5_200_000));
        assert_eq!(dates.told(at(5_500_000)).unwrap().as_micros(), 1_001_300_000);
        dates.hear(1001, at(5_900_000));
        assert_eq!(dates.told(at(5_900_000)).unwrap().as_micros(), 1_001_700_000);
    }

    #[test]
    fn an_old_answer_is_not_believed_for_ever() {
        let dates = Dates::new();
        dates.hear(1000, at(0));
        dates.hear(1400, at(401_000_000));
        assert_eq!(dates.told(at(401_000_000)).unwrap().as_micros(), 1_400_000_000);
    }
}
