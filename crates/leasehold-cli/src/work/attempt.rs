//! One attempt at a task: the command runs until it has ended, by itself or because it has to.

use std::sync::Arc;

use leasehold::model::Payload;
use leasehold::{Running, Setback};

use super::capture::Ear;
use super::outcome::{self, Outcome};
use super::reports::Reports;
use super::shop::{Hurry, Shop, Tally};
use crate::run::{End, Keeper, Launched};

pub(super) async fn attempt(shop: Arc<Shop>, running: Running<Payload>) -> Result<Option<Payload>, Setback> {
    count(&shop, |tally| tally.begun += 1);
    let outcome = run(&shop, &running).await;
    if let Some(trouble) = &outcome.trouble {
        let task = running.task();
        let (id, queue, attempt) = (task.id, &task.queue, task.attempt);
        shop.say(format!("task {id} of '{queue}', attempt {attempt}: {trouble}")).await;
    }
    count(&shop, |tally| tally.ended += 1);
    outcome.result
}

fn count(shop: &Shop, change: impl FnOnce(&mut Tally)) {
    shop.tally.send_modify(change);
}

async fn run(shop: &Arc<Shop>, running: &Running<Payload>) -> Outcome {
    let launched = shop.launcher.launch(running.task(), running.lock_token(), running.valid_until()).await;
    let heard = launched.and_then(|Launched { keeper, stdout, stderr, progress }| {
        let out = Ear::new(stdout, shop.stdout.clone(), outcome::keep_out())?;
        let error = Ear::new(stderr, shop.stderr.clone(), outcome::keep_error())?;
        Ok((keeper, out, error, Reports::new(progress)?))
    });
    match heard {
        Ok((keeper, out, error, reports)) => {
            let end = oversee(shop, running, keeper, reports).await;
            let (out, error) = tokio::join!(out.finish(shop), error.finish(shop));
            Outcome::new(end, running.task(), out, error)
        }
        Err(error) => Outcome::not_started(&error),
    }
}

/// Tells the keeper what it has to know, until nothing of the command is alive.
async fn oversee(shop: &Shop, running: &Running<Payload>, mut keeper: Keeper, mut reports: Reports) -> End {
    let mut until = running.valid_until();
    keeper.renewed(until);
    let (mut stopped, mut killed) = (false, false);
    loop {
        tokio::select! {
            end = keeper.end() => return end,
            now = running.renewed(until) => {
                until = now;
                keeper.renewed(until);
            }
            progress = reports.next() => running.progress(progress),
            () = stop_wanted(shop, running), if !stopped => {
                stopped = true;
                keeper.stop();
            }
            () = shop.hurried(Hurry::Kill), if !killed => {
                killed = true;
                keeper.kill();
            }
        }
    }
}

/// The lease is lost, somebody wants the task stopped, or the worker ends.
async fn stop_wanted(shop: &Shop, running: &Running<Payload>) {
    tokio::select! {
        () = running.lost() => {}
        () = shop.hurried(Hurry::Stop) => {}
    }
}
