//! Workflows that the server starts, and the webhook triggers that start them.

mod settings;

pub use settings::{CommandSettings, Runner, Trigger, Workflow};
pub(crate) use settings::{DEFAULT_QUEUE_LIMIT, DEFAULT_TTL, REPLAY_MEMORY, TOLERANCE};
