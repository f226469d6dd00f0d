//! Error of guarded work, with the value that the work returned nevertheless.

use crate::error::Error;

/// Error of guarded work that was stopped because its lease was lost, or that ended after its lease
/// had been lost.
///
/// Converts into its [`Error`], so `?` works where the value does not matter.
pub struct RunError<T> {
    /// Cause of the error.
    pub error: Error,
    /// Value that the work returned, if it had ended. The work may have run concurrently with
    /// another holder of the lock.
    pub value: Option<T>,
}

impl<T> From<RunError<T>> for Error {
    fn from(run: RunError<T>) -> Self {
        run.error
    }
}

impl<T> std::fmt::Debug for RunError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = if self.value.is_some() { "Some(…)" } else { "None" };
        f.debug_struct("RunError")
            .field("error", &self.error)
            .field("value", &format_args!("{value}"))
            .finish()
    }
}

impl<T> std::fmt::Display for RunError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for RunError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}
