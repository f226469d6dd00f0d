//! One attempt at a task: runs the command until it ends by itself or is stopped.

use std::io;
use std::sync::Arc;

use leasehold::model::Payload;
use leasehold::{HandlerError, TaskContext};

use super::capture::{Ear, Form, Kept, Teller};
use super::events::{Ending, Stream, Subject, WorkEvent};
use super::outcome::{self, Outcome};
use super::reports::Reports;
use super::shop::{Hurry, Shop, Tally};
use crate::run::{End, Keeper, Launched, Launcher};

pub(super) async fn attempt(
    shop: Arc<Shop>,
    launcher: Arc<Launcher>,
    running: TaskContext<Payload>,
) -> Result<Option<Payload>, HandlerError> {
    count(&shop, |tally| tally.begun += 1);
    let of = Subject::new(running.task());
    shop.report(WorkEvent::Started { of: &of, token: running.task().token.get() }).await;
    let outcome = run(&shop, &launcher, &running, &of).await;
    shop.report(WorkEvent::Ended {
        of: &of,
        success: outcome.ending == Ending::Succeeded,
        outcome: outcome.ending,
        will_retry: outcome.will_retry,
        result: outcome.result.as_ref().ok().and_then(Option::as_ref),
        error: outcome.trouble.as_deref(),
    })
    .await;
    if let Some(trouble) = outcome.trouble.as_ref().filter(|_| shop.says_endings) {
        let task = running.task();
        let (id, queue, attempt) = (task.id.short(), &task.queue, task.attempt);
        let why = if running.is_overdue() { ": it ran for its --max-runtime" } else { "" };
        shop.say(format!("task {id} of '{queue}', attempt {attempt}: {trouble}{why}")).await;
    }
    count(&shop, |tally| tally.ended += 1);
    outcome.result
}

fn count(shop: &Shop, change: impl FnOnce(&mut Tally)) {
    shop.tally.send_modify(change);
}

async fn run(shop: &Arc<Shop>, launcher: &Launcher, running: &TaskContext<Payload>, of: &Subject) -> Outcome {
    let begun = launcher.launch(running.task(), running.lock_token(), running.valid_until()).await;
    let form = if shop.printer.json { Form::Json(of.clone()) } else { Form::AsItIs };
    match listen(shop, begun, &form) {
        Ok(heard) => {
            let (end, out, error) = heard.until_the_end(shop, running).await;
            Outcome::new(end, running.task(), shop.is_hurried(), out, error)
        }
        Err(error) => Outcome::not_started(running.task(), &error),
    }
}

/// Running command whose output and progress are read.
pub(super) struct Heard {
    keeper: Keeper,
    out: Ear,
    error: Ear,
    reports: Reports,
}

/// Starts to read the streams of a command. Its lines are forwarded in this form.
pub(super) fn listen(shop: &Shop, launched: io::Result<Launched>, form: &Form) -> io::Result<Heard> {
    let Launched { keeper, stdout, stderr, progress } = launched?;
    // With JSON, all events go to one stream, in the order in which the command wrote.
    let for_errors = if matches!(form, Form::Json(_)) { &shop.stdout } else { &shop.stderr };
    let to_stdout = Teller { to: shop.stdout.clone(), form: form.clone(), stream: Stream::Stdout };
    let to_stderr = Teller { to: for_errors.clone(), form: form.clone(), stream: Stream::Stderr };
    let out = Ear::new(stdout, to_stdout, outcome::keep_out())?;
    let error = Ear::new(stderr, to_stderr, outcome::keep_error())?;
    Ok(Heard { keeper, out, error, reports: Reports::new(progress)? })
}

impl Heard {
    /// Waits until no process of the command is alive. Returns how it ended, and the captured parts
    /// of its stdout and stderr.
    pub(super) async fn until_the_end<W>(self, shop: &Shop, running: &TaskContext<W>) -> (End, Kept, Kept) {
        let end = oversee(shop, running, self.keeper, self.reports).await;
        let (out, error) = tokio::join!(self.out.finish(shop), self.error.finish(shop));
        (end, out, error)
    }
}

/// Forwards renewals and stop requests to the keeper, until no process of the command is alive.
async fn oversee<W>(shop: &Shop, running: &TaskContext<W>, mut keeper: Keeper, mut reports: Reports) -> End {
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

/// Resolves when the lease is lost, the task is to be stopped, or the worker shuts down.
async fn stop_wanted<W>(shop: &Shop, running: &TaskContext<W>) {
    tokio::select! {
        () = running.lost() => {}
        () = shop.hurried(Hurry::Stop) => {}
    }
}
