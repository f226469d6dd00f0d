//! Access of streams, which are requests without an end: a stream ends soon after its token was revoked, and
//! counts as a request of its token until then.

use std::time::Duration;

use leasehold::BootInstant;

use super::authenticator::Authenticator;
use super::scope::Identity;
use crate::problem::ApiResult;
use crate::sync::InProgress;

/// Interval at which the token of a stream is checked again.
const INTERVAL: Duration = Duration::from_secs(5);

/// Token of a stream, and the time of its next check.
pub(crate) struct StreamAccess {
    /// Text of the token; `None` on a server without tokens.
    token: Option<String>,
    due: BootInstant,
    _in_progress: Option<InProgress<String>>,
}

impl StreamAccess {
    /// Creates the access of a stream whose token was checked just now. `in_progress` is the count of the
    /// request.
    pub(crate) fn new(
        authenticator: &Authenticator,
        token: Option<String>,
        in_progress: Option<InProgress<String>>,
    ) -> Self {
        let token = token.filter(|_| !authenticator.is_open());
        Self { token, due: BootInstant::now().plus(INTERVAL), _in_progress: in_progress }
    }

    /// Waits until the token is to be checked again.
    pub(crate) async fn wait(&self) {
        match self.token {
            Some(_) => tokio::time::sleep(self.due.after(BootInstant::now())).await,
            None => std::future::pending().await,
        }
    }

    /// Checks the token if its check is due. Returns whether it was revoked or has expired, or no longer
    /// reaches what the stream follows. A store that does not respond is no reason to end the stream.
    pub(crate) async fn is_lost(
        &mut self,
        authenticator: &Authenticator,
        may_follow: impl Fn(&Identity) -> ApiResult<()>,
    ) -> bool {
        let now = BootInstant::now();
        let Some(token) = self.token.as_deref().filter(|_| self.due <= now) else { return false };
        self.due = now.plus(INTERVAL);
        match authenticator.identify(token).await {
            Ok(identity) => may_follow(&identity).is_err(),
            Err(problem) => problem.code() == "UNAUTHENTICATED",
        }
    }
}
