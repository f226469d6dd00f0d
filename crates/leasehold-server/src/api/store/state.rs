//! Temporary state of the store protocol. None of it is needed after a restart: the new clock
//! rejects requests that were sent to the server before the restart.

use std::time::Duration;

use leasehold::BootInstant;
use leasehold::model::LeaseId;
use leasehold::store::in_order::{InOrder, Keep, KeptState};
use leasehold::store::protocol::{CallId, Tick};
use uuid::Uuid;

use super::sessions::Sessions;
use crate::problem::Problem;

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

/// Time for which a superseding call is remembered. Longer than any request can be in flight: the
/// clock in a request rejects it before.
const RETENTION: Duration = Duration::from_mins(2);

/// Serializes the calls for each lease id.
pub(super) type LeaseOrder = InOrder<LeaseId, SupersedingCalls>;

/// Last superseding call of each client for one lease id: its number and its arrival time.
#[derive(Debug, Default)]
pub(super) struct SupersedingCalls(Vec<(Uuid, u64, BootInstant)>);

impl SupersedingCalls {
    /// Rejects a call that its client has superseded by a later one, because it received no response.
    pub(super) fn must_be_the_last(&mut self, call: CallId) -> Result<(), Problem> {
        if self.0.iter().any(|(client, last, _)| *client == call.client && call.number < *last) {
            return Err(Problem::new("LATE", "the client has superseded this request by a later one"));
        }
        if call.supersedes {
            self.0.retain(|(client, ..)| *client != call.client);
            self.0.push((call.client, call.number, BootInstant::now()));
        }
        Ok(())
    }
}

impl KeptState for SupersedingCalls {
    fn keep(&mut self) -> Keep {
        let now = BootInstant::now();
        self.0.retain(|(.., since)| now.after(*since) < RETENTION);
        if self.0.is_empty() { Keep::No } else { Keep::Yes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_superseded_call_is_rejected_however_late_it_arrives() {
        let (order, lease) = (LeaseOrder::default(), LeaseId::from_uuid(Uuid::from_u128(1)));
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let call = async |client, number, supersedes| {
            order.enter(lease).await.must_be_the_last(CallId { client, number, supersedes })
        };
        assert!(call(one, 5, false).await.is_ok());
        assert!(call(one, 7, true).await.is_ok());
        assert_eq!(call(one, 6, false).await.unwrap_err().code(), "LATE");
        assert!(call(one, 8, false).await.is_ok());
        assert!(call(other, 1, false).await.is_ok(), "each client has its own numbers");
    }
}
