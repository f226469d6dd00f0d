//! `leasehold.toml`: settings of a server, parsed strictly. Errors name the file, the line and the key.

mod file;
mod mistake;
mod settings;
mod trigger;
mod values;

pub use mistake::Mistake;
pub use settings::{ScheduleSettings, Settings, StoreAddress};
