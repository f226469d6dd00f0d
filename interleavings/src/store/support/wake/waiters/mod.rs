//! Waiters of this process.

pub mod checks;
pub mod early_notify;
pub mod stale_grant;
mod subject {
    include!(concat!(env!("OUT_DIR"), "/waiters.rs"));
}

use super::registry;
