//! Limit on the number of concurrent requests per token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::problem::{ApiResult, Problem};

/// Number of requests in progress per token.
#[derive(Clone, Default)]
pub(crate) struct Quota(Arc<Mutex<HashMap<String, usize>>>);

/// One request in progress; dropping it decrements the count of its token.
pub(crate) struct InFlight {
    quota: Quota,
    token: String,
}

impl Quota {
    /// Counts a request, or rejects it if the token has reached its maximum of concurrent requests.
    pub(crate) fn enter(&self, token: &str, max: usize) -> ApiResult<InFlight> {
        let mut counts = self.counts();
        let count = counts.entry(token.to_owned()).or_default();
        if *count >= max {
            let detail = format!("the token '{token}' has {max} concurrent requests, which is its maximum");
            let problem = Problem::new("RATE_LIMITED", detail).retry_after(Duration::from_secs(1));
            return Err(problem.hint("send fewer concurrent requests, or raise [limits] requests_per_token"));
        }
        *count += 1;
        Ok(InFlight { quota: self.clone(), token: token.to_owned() })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut counts = self.quota.counts();
        if let Some(count) = counts.get_mut(&self.token) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.token);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_has_its_own_limit() {
        let quota = Quota::default();
        let first = quota.enter("ada", 2).unwrap();
        let _second = quota.enter("ada", 2).unwrap();
        assert_eq!(quota.enter("ada", 2).err().unwrap().code(), "RATE_LIMITED");
        let other = quota.enter("eve", 2).unwrap();
        drop((first, other));
        assert!(quota.enter("ada", 2).is_ok());
        assert_eq!(quota.counts().len(), 1, "only tokens with a request are counted");
    }
}
