//! Runtime on which a store was connected. An inline connection lives on it: a lone caller there
//! reaches the server without a switch to the thread of the engine.

use tokio::runtime::{Handle, Id};

/// Runtime on which a store was connected, if there was one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HomeRuntime(Option<Id>);

impl HomeRuntime {
    /// Returns the current runtime.
    pub(crate) fn current() -> Self {
        Self(Handle::try_current().ok().map(|handle| handle.id()))
    }

    /// Whether the caller is on this runtime.
    pub(crate) fn is_current(self) -> bool {
        self.0.is_some() && Self::current().0 == self.0
    }
}
