//! One attempt at a task: the command runs until it has ended, by itself or because it has to.

use std::io;
use std::sync::Arc;

use leasehold::model::Payload;
use leasehold::{Running, Setback};

use super::capture::{Ear, Kept};
use super::outcome::{self, Outcome};
use super::reports::Reports;
use super::shop::{Hurry, Shop, Tally};
use crate::run::{End, Keeper, Launched, Launcher};

pub(super) async fn attempt(
    shop: Arc<Shop>,
    launcher: Arc<Launcher>,
    running: Running<Payload>,
) -> Result<Option<Payload>, Setback> {
    count(&shop, |tally| tally.begun += 1);
    let outcome = run(&shop, &launcher, &running).await;
    if let Some(trouble) = &outcome.trouble {
        let task = running.task();
        let (id, queue, attempt) = (task.id.short(), &task.queue, task.attempt);
        shop.say(format!("task {id} of '{queue}', attempt {attempt}: {trouble}")).await;
    }
    count(&shop, |tally| tally.ended += 1);
    outcome.result
}

fn count(shop: &Shop, change: impl FnOnce(&mut Tally)) {
    shop.tally.send_modify(change);
}

async fn run(shop: &Arc<Shop>, launcher: &Launcher, running: &Running<Payload>) -> Outcome {
    let begun = launcher.launch(running.task(), running.lock_token(), running.valid_until()).await;
    match listen(shop, begun, "") {
        Ok(heard) => {
            let (end, out, error) = heard.until_the_end(shop, running).await;
            Outcome::new(end, running.task(), shop.is_hurried(), out, error)
        }
        Err(error) => Outcome::not_started(&error),
    }
}

/// A command that runs, and is listened to.
pub(super) struct Heard {
    keeper: Keeper,
    out: Ear,
    error: Ear,
    reports: Reports,
}

/// Begins to listen to a command. Its lines are passed on with `prefix` before them.
pub(super) fn listen(shop: &Shop, launched: io::Result<Launched>, prefix: &str) -> io::Result<Heard> {
    let Launched { keeper, stdout, stderr, progress } = launched?;
    let out = Ear::new(stdout, shop.stdout.clone(), outcome::keep_out(), prefix)?;
    let error = Ear::new(stderr, shop.stderr.clone(), outcome::keep_error(), prefix)?;
    Ok(Heard { keeper, out, error, reports: Reports::new(progress)? })
}

impl Heard {
    /// Until nothing of the command is alive. Gives how it ended, and what was kept of its output.
    pub(super) async fn until_the_end<W>(self, shop: &Shop, running: &Running<W>) -> (End, Kept, Kept) {
        let end = oversee(shop, running, self.keeper, self.reports).await;
        let (out, error) = tokio::join!(self.out.finish(shop), self.error.finish(shop));
        (end, out, error)
    }
}

/// Tells the keeper what it has to know, until nothing of the command is alive.
async fn oversee<W>(shop: &Shop, running: &Running<W>, mut keeper: Keeper, mut reports: Reports) -> End {
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
async fn stop_wanted<W>(shop: &Shop, running: &Running<W>) {
    tokio::select! {
        () = running.lost() => {}
        () = shop.hurried(Hurry::Stop) => {}
    }
}
