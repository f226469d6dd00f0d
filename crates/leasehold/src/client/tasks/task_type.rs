//! Typed tasks: their payload, and how a handler's result ends an attempt.

use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::model::{AttemptResult, Message, Payload, RetryPolicy, Ttl};

/// Kind of task: a serializable payload type, with the settings that apply to all of its tasks.
///
/// ```
/// use std::time::Duration;
/// use leasehold::TaskType;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Encode { video: String }
///
/// impl TaskType for Encode {
///     const QUEUE: &'static str = "video";
///     const TTL: Duration = Duration::from_secs(60);
/// }
/// ```
pub trait TaskType: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Queue that tasks of this type are added to.
    const QUEUE: &'static str;

    /// Time to live of a lease without a heartbeat. A worker crash delays a task by at most this
    /// time.
    const TTL: Duration = Duration::from_secs(30);

    /// Maximum number of attempts of a task of this type, and the delays between them.
    const RETRIES: RetryPolicy = RetryPolicy::DEFAULT;

    /// Maximum run time of one attempt; unlimited by default. A worker ends an attempt that runs longer.
    const TIMEOUT: Option<Duration> = None;
}

/// Reason why an attempt did not succeed, and how the task continues. The `?` operator converts any
/// error: the attempt fails, and the task is tried again if attempts are left.
#[derive(Debug, Clone)]
pub struct HandlerError(pub(super) AttemptResult);

impl HandlerError {
    /// Reports a failed attempt; the task is tried again after the delay of its retry policy.
    pub fn retry(reason: impl Display) -> Self {
        Self(AttemptResult::Retry(Message::new(reason.to_string()), None))
    }

    /// Reports a failed attempt; the task is tried again after this delay.
    pub fn retry_in(delay: Duration, reason: impl Display) -> Self {
        Self(AttemptResult::Retry(Message::new(reason.to_string()), Some(clamped(delay))))
    }

    /// Reports a permanent failure; the task is not tried again.
    pub fn fail(reason: impl Display) -> Self {
        Self(AttemptResult::Fail(Message::new(reason.to_string())))
    }

    /// Reports that the task was stopped for this reason; it neither succeeded nor failed.
    pub fn abort(reason: impl Display) -> Self {
        Self(AttemptResult::Abort(Some(Message::new(reason.to_string()))))
    }

    /// Postpones the task. Does not count as an attempt.
    pub fn snooze(delay: Duration) -> Self {
        Self(AttemptResult::Snooze(clamped(delay)))
    }

    /// Returns the task to its queue for another worker: the handler has not begun it and must not run it. The task
    /// keeps its place, can be leased at once, also by this worker, and the attempt does not count. Stop the worker
    /// then, or the worker leases the task again.
    pub const fn returned() -> Self {
        Self(AttemptResult::Return)
    }
}

/// Converts an error to a retryable failure whose message includes its chain of causes.
impl<E: std::error::Error> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            reason.push_str(": ");
            reason.push_str(&error.to_string());
            cause = error.source();
        }
        Self::retry(reason)
    }
}

pub(super) fn attempt_result<R: Serialize>(outcome: Result<R, HandlerError>) -> AttemptResult {
    match outcome {
        Err(HandlerError(result)) => result,
        Ok(result) => match Payload::of(&result) {
            Ok(result) if result == Payload::default() => AttemptResult::Done(None),
            Ok(result) => AttemptResult::Done(Some(result)),
            Err(error) => AttemptResult::Fail(Message::new(format!(
                "the work is done, but its result cannot be kept: {error}"
            ))),
        },
    }
}

pub(super) fn clamped(delay: Duration) -> Ttl {
    Ttl::new(delay.clamp(Ttl::MIN.as_duration(), Ttl::MAX.as_duration())).unwrap_or(Ttl::MAX)
}
