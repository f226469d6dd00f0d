//! Typed tasks: what they are about, and how a handler's result ends an attempt.

use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::model::{Note, Payload, Retries, Ttl, Verdict};

/// A kind of task: a struct that can be written and read, and in one place what holds for all of its tasks.
///
/// ```
/// use std::time::Duration;
/// use leasehold::Work;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Encode { video: String }
///
/// impl Work for Encode {
///     const QUEUE: &'static str = "video";
///     const TTL: Duration = Duration::from_secs(60);
/// }
/// ```
pub trait Work: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The queue that its tasks are added to.
    const QUEUE: &'static str;

    /// How long a lease on one of its tasks lasts without a sign of life. A worker's crash costs this long at most.
    const TTL: Duration = Duration::from_secs(30);

    /// How often one of its tasks is tried, and how long the pauses between are.
    const RETRIES: Retries = Retries::USUAL;
}

/// Why an attempt did not succeed, and what is to come of it. Any error becomes one with `?`: the attempt failed, and
/// is made again if attempts are left.
#[derive(Debug, Clone)]
pub struct Setback(pub(super) Verdict);

impl Setback {
    /// It failed: try again after the usual pause.
    pub fn retry(why: impl Display) -> Self {
        Self(Verdict::Retry(Note::new(why.to_string()), None))
    }

    /// It failed: try again after this pause.
    pub fn retry_in(pause: Duration, why: impl Display) -> Self {
        Self(Verdict::Retry(Note::new(why.to_string()), Some(clamped(pause))))
    }

    /// It failed, and trying again is no use.
    pub fn fail(why: impl Display) -> Self {
        Self(Verdict::Fail(Note::new(why.to_string())))
    }

    /// It was stopped, for this reason: neither done nor failed.
    pub fn abort(why: impl Display) -> Self {
        Self(Verdict::Abort(Some(Note::new(why.to_string()))))
    }

    /// Not now: later. Does not count as an attempt.
    pub fn snooze(pause: Duration) -> Self {
        Self(Verdict::Snooze(clamped(pause)))
    }
}

/// An error and what caused it.
impl<E: std::error::Error> From<E> for Setback {
    fn from(error: E) -> Self {
        let mut why = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            why.push_str(": ");
            why.push_str(&error.to_string());
            cause = error.source();
        }
        Self::retry(why)
    }
}

/// What came of a handler, as the end of an attempt.
pub(in crate::client) fn verdict<R: Serialize>(outcome: Result<R, Setback>) -> Verdict {
    match outcome {
        Err(Setback(verdict)) => verdict,
        Ok(result) => match Payload::of(&result) {
            Ok(result) if result == Payload::default() => Verdict::Done(None),
            Ok(result) => Verdict::Done(Some(result)),
            Err(error) => {
                Verdict::Fail(Note::new(format!("the work is done, but its result cannot be kept: {error}")))
            }
        },
    }
}

/// A pause within the bounds.
pub(super) fn clamped(pause: Duration) -> Ttl {
    Ttl::new(pause.clamp(Ttl::MIN.as_duration(), Ttl::MAX.as_duration())).unwrap_or(Ttl::MAX)
}
