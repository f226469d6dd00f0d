//! `leasehold.toml`: settings of a server, parsed strictly. Errors name the file, the line and the key.

mod file;
mod settings;
mod trigger;

pub use file::ConfigError;
pub use settings::{ScheduleSettings, Settings, StoreAddress};
