//! The limits of the service: at least so long between two writes, no request while it refuses them, and what is left of
//! the hour's budget.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result, Trouble};
use crate::model::{Asked, Holder, Reason, Timestamp, Ttl, format_duration};
use crate::store::{Budget, Moment, RefusedUntil};

/// Keeps the pace for one client.
#[derive(Debug)]
pub(super) struct Pace {
    gap: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the next write may be sent.
    next_write: Option<Moment>,
    /// Until then nothing is sent: the service refuses it.
    refused: Option<Refused>,
    budget: Option<Budget>,
}

/// The service refuses every request until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused {
    until: Moment,
    /// The same by the service's clock, if it has dated its answer.
    date: Option<Timestamp>,
    status: u16,
}

/// What an answer says about the limits.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Said {
    pub(super) status: u16,
    pub(super) retry_after: Option<u64>,
    pub(super) budget: Option<Budget>,
    pub(super) date: Option<Timestamp>,
    /// Whether the text of the answer speaks of a limit.
    pub(super) limited: bool,
}

/// So many requests a renewal costs, by either arbiter.
const RENEWAL: u64 = 2;
/// If the service does not say for how long.
const A_WHILE: Duration = Duration::from_mins(1);
/// Nobody stands in line for a write for longer.
const LINE: Duration = Duration::from_secs(20);

impl Pace {
    pub(super) fn new(gap: Duration) -> Self {
        Self { gap, state: Mutex::default() }
    }

    /// Waits until a write may be sent. Returns an error at once while the service refuses requests: the caller knows how long
    /// it can wait for that.
    pub(super) async fn turn(&self, is_write: bool) -> Result<()> {
        let wait = {
            let (mut state, now) = (self.state(), Moment::now());
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
                    Trouble::Unavailable,
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

    /// Takes notice of what an answer says. Returns until when requests are refused, if the answer is such a refusal.
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
        let refused = Refused { until: Moment::now().plus(pause), date, status: said.status };
        let longest = state.refused.filter(|before| before.until > refused.until).unwrap_or(refused);
        state.refused = Some(longest);
        Some(longest)
    }

    /// Whether the service refuses requests now.
    pub(super) fn is_refused(&self) -> bool {
        let now = Moment::now();
        self.state().refused.is_some_and(|refused| now < refused.until)
    }

    /// What is left, as last heard.
    pub(super) fn budget(&self) -> Option<Budget> {
        self.state().budget
    }

    /// If what is left of the hour does not last for the renewals until it begins anew, whoever has just renewed its lease is asked
    /// to stop while that still lasts.
    pub(super) fn asks_to_stop(&self, leases: u64, ttl: Ttl, now: Timestamp) -> Option<Asked> {
        let budget = self.budget().filter(|budget| budget.ends_before(leases, ttl, RENEWAL, now))?;
        let Budget { limit, remaining, renews_at } = budget;
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
    /// The error for a caller: until when, and for how long from now.
    pub(super) fn error(self) -> Error {
        let left = format_duration(self.until.after(Moment::now()));
        let message = match self.date {
            Some(date) => format!("GitHub refuses requests until {date} ({left}): its rate limit is reached"),
            None => format!("GitHub refuses requests for {left}: its rate limit is reached"),
        };
        let hint = "wait for that long with --wait, or try again then; use a longer ttl, fewer locks, or a token of its own";
        let said = format!("{}: rate limit", self.status);
        Error::store(Trouble::Unavailable, message, hint).because(RefusedUntil { until: self.until, said })
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Budget =
        Budget { limit: 5000, remaining: 4000, renews_at: Timestamp::from_micros(1_700_003_600_000_000) };

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
        // A later refusal that names an earlier time does not end it.
        let sooner = pace.hear(&Said { status: 429, retry_after: Some(1), ..Said::default() });
        assert_eq!(left(sooner), 90);
    }

    /// In seconds from now, rounded up.
    fn left(refused: Option<Refused>) -> u64 {
        refused.unwrap().until.after(Moment::now()).as_micros().div_ceil(1_000_000).try_into().unwrap()
    }

    #[test]
    fn without_a_word_it_is_a_minute_and_an_empty_budget_says_when() {
        let pace = Pace::new(Duration::ZERO);
        let said = Said { status: 429, ..Said::default() };
        assert_eq!(left(pace.hear(&said)), A_WHILE.as_secs());
        let empty = Some(Budget { remaining: 0, ..HOUR });
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
        let start = Moment::now();
        for _ in 0..3 {
            pace.turn(true).await.unwrap();
        }
        assert!(Moment::now().after(start) >= Duration::from_millis(40));
        let slow = Pace::new(Duration::from_mins(1));
        slow.turn(true).await.unwrap();
        assert_eq!(slow.turn(true).await.unwrap_err().code(), "STORE_UNAVAILABLE");
        slow.turn(false).await.unwrap();
    }
}
