//! Temporary state of the store protocol. None of it is needed after a restart: the new clock
//! rejects requests that were sent to the server before the restart.

use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold::BootInstant;
use leasehold::store::protocol::Tick;
use uuid::Uuid;

use super::lease_order::LeaseOrder;
use super::sessions::Sessions;

/// Temporary state of the store protocol.
pub(crate) struct ProtocolState {
    instance: Uuid,
    started: BootInstant,
    pub(super) lease_order: LeaseOrder,
    pub(super) sessions: Sessions,
}

impl ProtocolState {
    pub(crate) fn new() -> Self {
        let (lease_order, sessions) = Default::default();
        Self { instance: Uuid::new_v4(), started: BootInstant::now(), lease_order, sessions }
    }

    /// Returns the current reading of the server's clock.
    pub(super) fn tick(&self) -> Tick {
        let micros = BootInstant::now().after(self.started).as_micros();
        Tick { instance: self.instance, micros: u64::try_from(micros).unwrap_or(u64::MAX) }
    }
}

/// Locks a mutex and ignores poisoning.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
