//! Notifications of workers.

pub mod checks;
pub mod kept_notification;
mod subject {
    include!(concat!(env!("OUT_DIR"), "/queues.rs"));
}
