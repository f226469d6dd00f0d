//! Signs of life.

use super::desk::Desk;
use super::leasing::lock_name;
use super::record::Record;
use super::sight::Sight;
use crate::Result;
use crate::model::{Beat, HeldTask, TaskAnswer, TaskOp, Ttl};
use crate::store::Moment;
use crate::store::github::claim::HEARTBEAT;

impl Desk {
    /// Shows a sign of life for each, and says what was heard; the answers are in their order.
    pub(super) async fn heartbeat(&self, held: &[HeldTask], ttl: Ttl) -> Result<Vec<Beat>> {
        let (mut beats, mut failed) = (Vec::with_capacity(held.len()), None);
        for held in held {
            match self.beat(held, ttl).await {
                Ok(beat) => beats.push(beat),
                // The others are kept alive all the same.
                Err(error) if error.is_retryable() => {
                    failed.get_or_insert(error);
                    beats.push(Beat::Lost);
                }
                Err(error) => {
                    tracing::warn!(task = %held.id, %error, "the lease of a task cannot be kept");
                    beats.push(Beat::Lost);
                }
            }
        }
        failed.map_or(Ok(beats), Err)
    }

    async fn beat(&self, held: &HeldTask, ttl: Ttl) -> Result<Beat> {
        let Some(number) = self.number(held.id).await? else { return Ok(Beat::Lost) };
        let _lane = self.lanes.enter(&lock_name(number)).await;
        let sent = Moment::now();
        let Some((_, view, sight)) = self.look(number).await? else { return Ok(Beat::Lost) };
        let mine = |claim: &crate::store::github::claim::Claim| {
            claim.token == held.token && claim.task.as_ref().is_some_and(|task| task.token == held.token)
        };
        let Some(mut standing) = self.protocol.lease(&view, mine) else { return Ok(Beat::Lost) };
        let Sight { mut task, plain, now, .. } = sight;
        let TaskAnswer::Beat(beat @ Beat::Kept(_)) = task.apply(&TaskOp::Beat(held.clone(), ttl), now) else {
            return Ok(Beat::Lost);
        };
        if let Some(claim) = &mut standing.claim {
            claim.task = Some(Box::new(Record::of(&task, &plain)));
            claim.metadata.set(HEARTBEAT, now.to_string()).unwrap_or_default();
        }
        let kept = self.protocol.prolong(number, &view, &standing, sent, Some(ttl)).await?;
        Ok(if kept.is_some() { beat } else { Beat::Lost })
    }
}
