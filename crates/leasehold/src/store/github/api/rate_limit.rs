//! Rate limits of the service: the minimum time between two writes, no request while the service
//! refuses them, and the rest of the hour's rate limit.

use std::sync::Mutex;
use std::time::Duration;

use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Holder, Reason, StopRequest, Timestamp, Ttl, format_duration};
use crate::store::support::mutex::lock;
use crate::store::{BootInstant, RateLimit, RefusedUntil};

#[derive(Debug)]
pub(crate) struct RateLimiter {
    gap: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Time from which the next write may be sent.
    next_write: Option<BootInstant>,
    /// Current refusal of the service; the client sends nothing until it ends.
    refusal: Option<Refusal>,
    rate_limit: Option<RateLimit>,
}

/// Refusal of all requests by the service until a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    until: BootInstant,
    /// End of the refusal by the service's clock, if its response had a date.
    date: Option<Timestamp>,
    status: u16,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ResponseLimits {
    pub(super) status: u16,
    pub(super) retry_after: Option<u64>,
    pub(super) rate_limit: Option<RateLimit>,
    pub(super) date: Option<Timestamp>,
    /// Whether the text of the response mentions a rate limit.
    pub(super) limited: bool,
}

/// Number of requests per renewal, with either arbiter, unless its list of comments has several pages.
pub(crate) const REQUESTS_PER_RENEWAL: u64 = 2;
/// Duration of a refusal if the service does not state one.
const DEFAULT_REFUSAL: Duration = Duration::from_mins(1);
/// Maximum time that a write waits for its turn.
const MAX_WRITE_WAIT: Duration = Duration::from_secs(20);

impl RateLimiter {
    pub(crate) fn new(gap: Duration) -> Self {
        Self { gap, state: Mutex::default() }
    }

    /// Waits until a write may be sent; a read does not wait. Returns an error at once while the
    /// service refuses requests: the caller knows how long it can wait for that.
    pub(super) async fn wait_turn(&self, is_write: bool) -> Result<()> {
        let wait = {
            let (mut state, now) = (lock(&self.state), BootInstant::now());
            state.check_refusal()?;
            if !is_write {
                return Ok(());
            }
            let at = state.next_write.map_or(now, |next| next.max(now));
            let wait = at.after(now);
            if wait > MAX_WRITE_WAIT {
                let message = "too many writes are waiting for GitHub, which accepts one per second";
                let hint = "hold fewer locks in one process, with a longer ttl";
                return Err(Error::store(StoreErrorKind::Unavailable, message, hint));
            }
            state.next_write = Some(at.plus(self.gap));
            wait
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
            // The response to an earlier write may have been a refusal.
            lock(&self.state).check_refusal()?;
        }
        Ok(())
    }

    /// Records the limits in a response. If that refuses requests, returns the refusal in force.
    pub(super) fn observe(&self, limits: &ResponseLimits) -> Option<Refusal> {
        let mut state = lock(&self.state);
        if limits.rate_limit.is_some() {
            state.rate_limit = limits.rate_limit;
        }
        let exhausted = limits.rate_limit.is_some_and(|rate_limit| rate_limit.remaining == 0);
        let is_limit = matches!(limits.status, 403 | 429)
            && (limits.limited || limits.retry_after.is_some() || exhausted);
        if !is_limit && limits.status != 429 {
            return None;
        }
        let reset = limits
            .rate_limit
            .filter(|rate_limit| rate_limit.remaining == 0)
            .zip(limits.date)
            .map(|(rate_limit, date)| rate_limit.renews_at.since(date) + Duration::from_secs(1));
        let pause = limits.retry_after.map(Duration::from_secs).or(reset).unwrap_or(DEFAULT_REFUSAL);
        let date = limits.date.map(|date| date.plus_micros(micros(pause)));
        let refusal = Refusal { until: BootInstant::now().plus(pause), date, status: limits.status };
        let longest = state.refusal.filter(|before| before.until > refusal.until).unwrap_or(refusal);
        state.refusal = Some(longest);
        Some(longest)
    }

    /// Whether the service refuses requests now.
    pub(crate) fn is_refused(&self) -> bool {
        let now = BootInstant::now();
        lock(&self.state).refusal.is_some_and(|refusal| now < refusal.until)
    }

    /// Returns the rate limit that the last response reported.
    pub(crate) fn rate_limit(&self) -> Option<RateLimit> {
        lock(&self.state).rate_limit
    }

    /// Returns a release request for a holder that has just renewed its lease, if the rest of the
    /// hour's rate limit does not suffice for the renewals until the rate limit is reset: the holder can
    /// stop while its lease still lasts. `requests` is the number of requests that renew all leases
    /// once.
    pub(crate) fn release_request(&self, requests: u64, ttl: Ttl, now: Timestamp) -> Option<StopRequest> {
        let rate_limit =
            self.rate_limit().filter(|rate_limit| rate_limit.ends_before(1, ttl, requests, now))?;
        let RateLimit { limit, remaining, renews_at } = rate_limit;
        let reason =
            format!("{remaining} of {limit} requests are left until {renews_at}: too few to keep this lease");
        tracing::warn!("{reason}");
        let by = Holder::new("the limit of GitHub").expect("the text is short");
        Some(StopRequest { by, reason: Reason::new(reason).ok(), at: now })
    }
}

impl State {
    /// Fails while the service refuses requests.
    fn check_refusal(&self) -> Result<()> {
        let now = BootInstant::now();
        self.refusal.filter(|refusal| now < refusal.until).map_or(Ok(()), |refusal| Err(refusal.error()))
    }
}

impl Refusal {
    /// Returns the error for a caller, with the end of the refusal and the time until then.
    pub(crate) fn error(self) -> Error {
        let left = format_duration(self.until.after(BootInstant::now()));
        let message = match self.date {
            Some(date) => format!("GitHub refuses requests until {date} ({left}): its rate limit is reached"),
            None => format!("GitHub refuses requests for {left}: its rate limit is reached"),
        };
        let hint = "try again then; use a longer ttl, fewer locks, or a token that nothing else uses";
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

    fn with_status(status: u16) -> ResponseLimits {
        ResponseLimits { status, ..ResponseLimits::default() }
    }

    #[tokio::test]
    async fn no_request_is_sent_during_a_refusal() {
        let rate_limiter = RateLimiter::new(Duration::ZERO);
        assert_eq!(
            rate_limiter.observe(&ResponseLimits { rate_limit: Some(HOUR), ..with_status(200) }),
            None
        );
        assert_eq!(rate_limiter.rate_limit(), Some(HOUR));
        rate_limiter.wait_turn(true).await.unwrap();
        let date = Some(Timestamp::from_micros(1_700_000_000_000_000));
        let refused =
            rate_limiter.observe(&ResponseLimits { retry_after: Some(90), date, ..with_status(403) });
        assert_eq!(left(refused), 90);
        let error = rate_limiter.wait_turn(false).await.unwrap_err();
        assert!(error.is_retryable() && error.retry_after().is_some_and(|left| !left.is_zero()), "{error}");
        let message = error.to_string();
        assert!(message.starts_with("GitHub refuses requests until 2023-11-14T22:14:50Z (1m"), "{message}");
        // A later refusal with an earlier end does not shorten the first one.
        let sooner = rate_limiter.observe(&ResponseLimits { retry_after: Some(1), ..with_status(429) });
        assert_eq!(left(sooner), 90);
    }

    /// Returns the rest of a refusal in seconds, rounded up.
    fn left(refused: Option<Refusal>) -> u64 {
        refused.unwrap().until.after(BootInstant::now()).as_micros().div_ceil(1_000_000).try_into().unwrap()
    }

    #[test]
    fn a_refusal_lasts_a_minute_or_until_the_rate_limit_is_reset() {
        let rate_limiter = RateLimiter::new(Duration::ZERO);
        assert_eq!(left(rate_limiter.observe(&with_status(429))), DEFAULT_REFUSAL.as_secs());
        let empty = Some(RateLimit { remaining: 0, ..HOUR });
        let date = Some(Timestamp::from_micros(1_700_003_000_000_000));
        let limits = ResponseLimits { rate_limit: empty, date, ..with_status(403) };
        assert_eq!(left(rate_limiter.observe(&limits)), 601);
    }

    #[test]
    fn a_403_without_limits_is_not_a_rate_limit() {
        let rate_limiter = RateLimiter::new(Duration::ZERO);
        assert_eq!(
            rate_limiter.observe(&ResponseLimits { rate_limit: Some(HOUR), ..with_status(403) }),
            None
        );
    }

    #[tokio::test]
    async fn a_write_that_waits_for_its_turn_is_not_sent_during_a_refusal() {
        let rate_limiter = RateLimiter::new(Duration::from_secs(2));
        rate_limiter.wait_turn(true).await.unwrap();
        let limits = ResponseLimits { retry_after: Some(90), ..with_status(403) };
        let refusal = async { rate_limiter.observe(&limits) };
        let (turn, refusal) = tokio::join!(rate_limiter.wait_turn(true), refusal);
        assert!(refusal.is_some());
        assert!(turn.unwrap_err().retry_after().is_some_and(|left| !left.is_zero()));
    }

    #[tokio::test]
    async fn writes_are_spaced_and_wait_a_limited_time() {
        let rate_limiter = RateLimiter::new(Duration::from_millis(20));
        let start = BootInstant::now();
        for _ in 0..3 {
            rate_limiter.wait_turn(true).await.unwrap();
        }
        assert!(BootInstant::now().after(start) >= Duration::from_millis(40));
        let slow = RateLimiter::new(Duration::from_mins(1));
        slow.wait_turn(true).await.unwrap();
        assert_eq!(slow.wait_turn(true).await.unwrap_err().code(), "STORE_UNAVAILABLE");
        slow.wait_turn(false).await.unwrap();
    }
}
