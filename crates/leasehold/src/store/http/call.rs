//! One call: tries until it is answered or its time is over.

use std::time::Duration;

use hyper::body::Bytes;

use super::ghosts::{Ghosts, Kind};
use super::link::{Letter, Link};
use super::trouble::Refusal;
use crate::error::Result;
use crate::store::Moment;
use crate::store::repeat::Repeat;

/// A call takes so long at most.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);
/// A server that is busy or stopping is asked so often in one call.
const TRIES: u32 = 5;
/// The longest pause before the next try, whatever the server says.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What is to be called.
pub(super) struct Errand {
    /// After the path that all calls have.
    pub(super) path: String,
    pub(super) body: Bytes,
    /// Whether it may be sent again once it may have begun; what was not begun for certain may be in any case.
    pub(super) repeat: Repeat,
    pub(super) kind: Kind,
}

impl Link {
    /// Makes a call. What it leaves behind that may yet begin is in `ghosts` afterwards.
    pub(super) async fn call(&self, errand: &Errand, ghosts: &mut Ghosts) -> Result<Bytes> {
        let mut deadline = Moment::now().plus(DEADLINE);
        let mut tries = 0;
        loop {
            let until = self.clocks.until(deadline);
            ghosts.forget_old(Moment::now());
            if let Some(moment) = ghosts.wait_for(errand.kind, &until.servers) {
                tokio::time::sleep(moment.after(Moment::now())).await;
                deadline = Moment::now().plus(DEADLINE);
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
            if tries >= TRIES || Moment::now().plus(pause) >= deadline {
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
