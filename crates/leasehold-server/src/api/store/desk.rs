//! What the store protocol remembers for a while. Nothing of it matters after a restart: requests that were made for this
//! server before it are refused by their clock.

use leasehold::BootInstant;
use leasehold::store::protocol::Tick;
use uuid::Uuid;

use super::board::Sessions;
use super::line::Lines;

pub(crate) struct StoreDesk {
    instance: Uuid,
    started: BootInstant,
    pub(super) lines: Lines,
    pub(super) sessions: Sessions,
}

impl StoreDesk {
    pub(crate) fn new() -> Self {
        let (lines, sessions) = Default::default();
        Self { instance: Uuid::new_v4(), started: BootInstant::now(), lines, sessions }
    }

    /// What this server's clock says.
    pub(super) fn tick(&self) -> Tick {
        let micros = BootInstant::now().after(self.started).as_micros();
        Tick { instance: self.instance, micros: u64::try_from(micros).unwrap_or(u64::MAX) }
    }
}
