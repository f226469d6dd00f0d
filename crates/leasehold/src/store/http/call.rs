//! One call: retries until the server responds or the deadline has passed.

use std::time::Duration;

use hyper::body::Bytes;

use super::ghosts::{Ghosts, Kind};
use super::link::{Letter, Link};
use super::trouble::Refusal;
use crate::error::Result;
use crate::store::BootInstant;
use crate::store::repeat::Repeat;

/// Maximum duration of a call.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);
/// Maximum number of attempts of one call if the server is busy or stopping.
const TRIES: u32 = 5;
/// Maximum delay before the next attempt, whatever `Retry-After` the server sends.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Call to be made.
pub(super) struct Errand {
    /// Path after the common prefix of all calls.
    pub(super) path: String,
    pub(super) body: Bytes,
    /// Whether the call may be resent once it may have begun; a call that certainly has not begun may
    /// always be resent.
    pub(super) repeat: Repeat,
    pub(super) kind: Kind,
}

impl Link {
    /// Makes a call. Adds the requests that may still begin later to `ghosts`.
    pub(super) async fn call(&self, errand: &Errand, ghosts: &mut Ghosts) -> Result<Bytes> {
        let mut deadline = BootInstant::now().plus(DEADLINE);
        let mut tries = 0;
        loop {
            let until = self.clocks.until(deadline);
            ghosts.forget_old(BootInstant::now());
            if let Some(moment) = ghosts.wait_for(errand.kind, &until.servers) {
                tokio::time::sleep(moment.after(BootInstant::now())).await;
                deadline = BootInstant::now().plus(DEADLINE);
                continue;
            }
            tries += 1;
            let letter = Letter {
                path: &errand.path,
                body: Some(errand.body.clone()),
                until: Some(&until.header),
                supersedes: !ghosts.is_empty(),
            };
            let (error, pause) = match self.exchange(letter, deadline).await {
                Ok(reply) => match Refusal::of(reply, self.place()) {
                    Ok(reply) => {
                        if let Some(server) = reply.server {
                            ghosts.answered_by(server);
                        }
                        return Ok(reply.body);
                    }
                    Err(refusal) if errand.may_try_again(&refusal) => (refusal.error, refusal.pause),
                    Err(refusal) => return Err(refusal.error),
                },
                Err(failed) => {
                    let may_begin = failed.may_have_been_sent();
                    if may_begin {
                        ghosts.add(until.servers, deadline, errand.kind);
                    }
                    let again = failed.may_pass() && (!may_begin || errand.repeat == Repeat::Safe);
                    let error = failed.explain(self.place());
                    if !again {
                        return Err(error);
                    }
                    (error, Duration::from_millis(10 << tries.min(6)))
                }
            };
            let pause = pause.min(LONGEST_PAUSE).mul_f64(0.75 + 0.5 * fastrand::f64());
            if tries >= TRIES || BootInstant::now().plus(pause) >= deadline {
                return Err(error);
            }
            tracing::debug!(path = errand.path, %error, "asking again");
            tokio::time::sleep(pause).await;
        }
    }
}

impl Errand {
    fn may_try_again(&self, refusal: &Refusal) -> bool {
        refusal.not_begun || (refusal.passing && self.repeat == Repeat::Safe)
    }
}
