//! What engines know of the machine that they run on: its clocks, processes, namespaces and local
//! token.

pub(crate) mod clock;
mod host;
pub(crate) mod local_token;
pub(crate) mod namespaces;
#[cfg(feature = "testing")]
pub(crate) mod simulation;

pub use clock::{Boot, BootInstant, Clock};
pub use host::{host_name, is_dead, process_identity, this_process};
pub use local_token::{local_token_or, local_token_path, read_local_token};
