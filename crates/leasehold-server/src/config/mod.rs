//! `leasehold.toml`: settings of a server, parsed strictly. Errors name the file, the line and the key.

mod error;
mod file;
mod settings;
mod trigger;

pub use error::ConfigError;
pub use settings::{ScheduleSettings, Settings, StoreAddress};
