//! `leasehold.toml`: the settings of a server, read strictly. A mistake is told with the file, the line and the key.
//!
//! | file | idea |
//! |---|---|
//! | `file.rs` | what may stand in the file |
//! | `values.rs` | durations, secrets and commands as they are written there |
//! | `settings.rs` | what the file means, checked as a whole |
//! | `trigger.rs` | the settings of a trigger |
//! | `mistake.rs` | what is wrong with it, and where |

mod file;
mod mistake;
mod settings;
mod trigger;
mod values;

pub use mistake::Mistake;
pub use settings::{ScheduleSettings, Settings, StoreAddress};
