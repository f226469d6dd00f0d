//! The workflows that the server starts, and the webhooks that start them.

mod settings;

pub use settings::{CommandSettings, Runner, Trigger, Workflow};
