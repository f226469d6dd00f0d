//! Heartbeats of leased tasks.

use super::desk::Desk;
use super::leasing::lock_name;
use super::record::Record;
use super::sight::Sight;
use crate::Result;
use crate::model::{HeartbeatResult, HeldTask, TaskAnswer, TaskOp, Ttl};
use crate::store::BootInstant;
use crate::store::github::claim::HEARTBEAT;

impl Desk {
    /// Sends a heartbeat for each task; returns the results in the same order.
    pub(super) async fn heartbeat(&self, held: &[HeldTask], ttl: Ttl) -> Result<Vec<HeartbeatResult>> {
        let (mut beats, mut failed) = (Vec::with_capacity(held.len()), None);
        for held in held {
            match self.beat(held, ttl).await {
                Ok(beat) => beats.push(beat),
                // The other leases are extended nevertheless.
                Err(error) if error.is_retryable() => {
                    failed.get_or_insert(error);
                    beats.push(HeartbeatResult::Lost);
                }
                Err(error) => {
                    tracing::warn!(task = %held.id, %error, "the lease of a task cannot be kept");
                    beats.push(HeartbeatResult::Lost);
                }
            }
        }
        failed.map_or(Ok(beats), Err)
    }

    async fn beat(&self, held: &HeldTask, ttl: Ttl) -> Result<HeartbeatResult> {
        let Some(number) = self.number(held.id).await? else { return Ok(HeartbeatResult::Lost) };
        let _lane = self.lanes.enter(&lock_name(number)).await;
        let sent = BootInstant::now();
        let Some((_, view, sight)) = self.look(number).await? else { return Ok(HeartbeatResult::Lost) };
        let mine = |claim: &crate::store::github::claim::Claim| {
            claim.token == held.token && claim.task.as_ref().is_some_and(|task| task.token == held.token)
        };
        let Some(mut standing) = self.protocol.lease(&view, mine) else { return Ok(HeartbeatResult::Lost) };
        let Sight { mut task, plain, now, .. } = sight;
        let TaskAnswer::Beat(beat @ HeartbeatResult::Extended(_)) =
            task.apply(&TaskOp::Beat(held.clone(), ttl), now)
        else {
            return Ok(HeartbeatResult::Lost);
        };
        if let Some(claim) = &mut standing.claim {
            claim.task = Some(Box::new(Record::of(&task, &plain)));
            claim.metadata.set(HEARTBEAT, now.to_string()).unwrap_or_default();
        }
        let kept = self.protocol.prolong(number, &view, &standing, sent, Some(ttl)).await?;
        Ok(if kept.is_some() { beat } else { HeartbeatResult::Lost })
    }
}
