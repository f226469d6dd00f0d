//! Rate limits of the service: the minimum time between two writes, no request while the service
//! refuses them, and the rest of the hour's budget.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Asked, Holder, Reason, Timestamp, Ttl, format_duration};
use crate::store::{BootInstant, RateLimit, RefusedUntil};

/// Rate limiter of one client.
#[derive(Debug)]
pub(super) struct Pace {
    gap: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Time from which the next write may be sent.
    next_write: Option<BootInstant>,
    /// Current refusal of the service; the client sends nothing until it ends.
    refused: Option<Refused>,
    budget: Option<RateLimit>,
}

/// Refusal of all requests by the service until a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused {
    until: BootInstant,
    /// End of the refusal by the service's clock, if its response had a date.
    date: Option<Timestamp>,
    status: u16,
}

/// Information about limits in a response.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Said {
    pub(super) status: u16,
    pub(super) retry_after: Option<u64>,
    pub(super) budget: Option<RateLimit>,
    pub(super) date: Option<Timestamp>,
    /// Whether the text of the response mentions a rate limit.
    pub(super) limited: bool,
}

/// Number of requests per renewal, with either arbiter.
const RENEWAL: u64 = 2;
/// Duration of a refusal if the service does not state one.
const A_WHILE: Duration = Duration::from_mins(1);
/// Maximum time that a write waits for its turn.
const LINE: Duration = Duration::from_secs(20);

impl Pace {
    pub(super) fn new(gap: Duration) -> Self {
        Self { gap, state: Mutex::default() }
    }

    /// Waits until a write may be sent; a read does not wait. Returns an error at once while the
    /// service refuses requests: the caller knows how long it can wait for that.
    pub(super) async fn turn(&self, is_write: bool) -> Result<()> {
        let wait = {
            let (mut state, now) = (self.state(), BootInstant::now());
            if let Some(refused) = state.refused.filter(|refused| now < refused.until) {
                return Err(refused.error());
            }
            if !is_write {
                return Ok(());
            }
            let at = state.next_write.map_or(now, |next| next.max(now));
            let wait = at.after(now);
            if wait > LINE {
                let message = "more is to be written to GitHub than it takes: a write a second";
                return Err(Error::store(
                    StoreErrorKind::Unavailable,
                    message,
                    "hold fewer locks in one process, with a longer ttl",
                ));
            }
            state.next_write = Some(at.plus(self.gap));
            wait
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }

    /// Records the limits in a response. Returns the refusal that is in force, if the response is
    /// one.
    pub(super) fn hear(&self, said: &Said) -> Option<Refused> {
        let mut state = self.state();
        if said.budget.is_some() {
            state.budget = said.budget;
        }
        let exhausted = said.budget.is_some_and(|budget| budget.remaining == 0);
        let is_limit =
            matches!(said.status, 403 | 429) && (said.limited || said.retry_after.is_some() || exhausted);
        if !is_limit && said.status != 429 {
            return None;
        }
        let reset = said
            .budget
            .filter(|budget| budget.remaining == 0)
            .zip(said.date)
            .map(|(budget, date)| budget.renews_at.since(date) + Duration::from_secs(1));
        let pause = said.retry_after.map(Duration::from_secs).or(reset).unwrap_or(A_WHILE);
        let date = said.date.map(|date| date.plus_micros(micros(pause)));
        let refused = Refused { until: BootInstant::now().plus(pause), date, status: said.status };
        let longest = state.refused.filter(|before| before.until > refused.until).unwrap_or(refused);
        state.refused = Some(longest);
        Some(longest)
    }

    /// Whether the service refuses requests now.
    pub(super) fn is_refused(&self) -> bool {
        let now = BootInstant::now();
        self.state().refused.is_some_and(|refused| now < refused.until)
    }

    /// Returns the budget that the last response reported.
    pub(super) fn budget(&self) -> Option<RateLimit> {
        self.state().budget
    }

    /// Returns a release request for a holder that has just renewed its lease, if the rest of the
    /// hour's budget does not suffice for the renewals until the budget is reset: the holder can
    /// stop while its lease still lasts.
    pub(super) fn asks_to_stop(&self, leases: u64, ttl: Ttl, now: Timestamp) -> Option<Asked> {
        let budget = self.budget().filter(|budget| budget.ends_before(leases, ttl, RENEWAL, now))?;
        let RateLimit { limit, remaining, renews_at } = budget;
        let why =
            format!("{remaining} of {limit} requests are left until {renews_at}: too few to keep this lease");
        tracing::warn!("{why}");
        let by = Holder::new("the limit of GitHub").expect("it is short");
        Some(Asked { by, reason: Reason::new(why).ok(), at: now })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Refused {
    /// Returns the error for a caller, with the end of the refusal and the time until then.
    pub(super) fn error(self) -> Error {
        let left = format_duration(self.until.after(BootInstant::now()));
        let message = match self.date {
            Some(date) => format!("GitHub refuses requests until {date} ({left}): its rate limit is reached"),
            None => format!("GitHub refuses requests for {left}: its rate limit is reached"),
        };
        let hint = "wait for that long with --wait, or try again then; use a longer ttl, fewer locks, or a token of its own";
        let said = format!("{}: rate limit", self.status);
        Error::store(StoreErrorKind::Unavailable, message, hint)
            .because(RefusedUntil { until: self.until, said })
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: RateLimit =
        RateLimit { limit: 5000, remaining: 4000, renews_at: Timestamp::from_micros(1_700_003_600_000_000) };

    #[tokio::test]
    async fn a_refusal_that_asks_for_silence_is_obeyed() {
        let pace = Pace::new(Duration::ZERO);
        assert_eq!(pace.hear(&Said { status: 200, budget: Some(HOUR), ..Said::default() }), None);
        assert_eq!(pace.budget(), Some(HOUR));
        pace.turn(true).await.unwrap();
        let date = Some(Timestamp::from_micros(1_700_000_000_000_000));
        let refused = pace.hear(&Said { status: 403, retry_after: Some(90), date, ..Said::default() });
        assert_eq!(left(refused), 90);
        let error = pace.turn(false).await.unwrap_err();
        assert!(error.is_retryable() && error.retry_after().is_some_and(|left| !left.is_zero()), "{error}");
        let said = error.to_string();
        assert!(said.starts_with("GitHub refuses requests until 2023-11-14T22:14:50Z (1m"), "{said}");
        // A later refusal with an earlier end does not shorten the first one.
        let sooner = pace.hear(&Said { status: 429, retry_after: Some(1), ..Said::default() });
        assert_eq!(left(sooner), 90);
    }

    /// Returns the rest of a refusal in seconds, rounded up.
    fn left(refused: Option<Refused>) -> u64 {
        refused.unwrap().until.after(BootInstant::now()).as_micros().div_ceil(1_000_000).try_into().unwrap()
    }

    #[test]
    fn without_a_word_it_is_a_minute_and_an_empty_budget_says_when() {
        let pace = Pace::new(Duration::ZERO);
        let said = Said { status: 429, ..Said::default() };
        assert_eq!(left(pace.hear(&said)), A_WHILE.as_secs());
        let empty = Some(RateLimit { remaining: 0, ..HOUR });
        let date = Some(Timestamp::from_micros(1_700_003_000_000_000));
        let said = Said { status: 403, budget: empty, date, ..Said::default() };
        assert_eq!(left(pace.hear(&said)), 601);
    }

    #[test]
    fn a_plain_refusal_is_not_about_limits() {
        let pace = Pace::new(Duration::ZERO);
        assert_eq!(pace.hear(&Said { status: 403, budget: Some(HOUR), ..Said::default() }), None);
    }

    #[tokio::test]
    async fn writes_keep_their_distance_and_nobody_stands_in_line_for_ever() {
        let pace = Pace::new(Duration::from_millis(20));
        let start = BootInstant::now();
        for _ in 0..3 {
            pace.turn(true).await.unwrap();
        }
        assert!(BootInstant::now().after(start) >= Duration::from_millis(40));
        let slow = Pace::new(Duration::from_mins(1));
        slow.turn(true).await.unwrap();
        assert_eq!(slow.turn(true).await.unwrap_err().code(), "STORE_UNAVAILABLE");
        slow.turn(false).await.unwrap();
    }
}
