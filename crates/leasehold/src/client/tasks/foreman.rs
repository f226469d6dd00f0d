//! Leasing of tasks, and starting of their handlers.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::attempt::{Ended, attempt};
use super::context::Ties;
use super::floor::{Floor, Stop, Terms};
use super::pulse::About;
use super::slots::Slots;
use crate::client::leasehold::Inner;
use crate::error::Result;
use crate::model::{
    AttemptResult, HeartbeatResult, HeldTask, LeaseTasks, Leased, Message, QueueName, Settle, Task, TaskId,
    TaskState, Token, Ttl,
};
use crate::store::{BootInstant, ListTasks, QueueSubscription};

/// Type-erased handler of tasks.
pub(in crate::client) type Handler = dyn Fn(Arc<Task>, Option<Token>, Ties) -> Pin<Box<dyn Future<Output = AttemptResult> + Send>>
    + Send
    + Sync;

/// Amount of work that is prefetched, as run time per slot.
const AHEAD: Duration = Duration::from_millis(20);
/// Maximum number of tasks that are prefetched by default.
const MOST_AHEAD: usize = 200;
/// Maximum number of ended attempts that are not settled in the store yet; beyond it no tasks are
/// leased.
const MOST_UNSETTLED: usize = 2000;
/// Maximum delay between tries while the store cannot be reached.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Queues with the same lease ttl; leased in one call.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) ttl: Ttl,
    pub(super) queues: Vec<QueueName>,
}

/// Leases tasks and starts their handlers.
pub(super) struct Foreman {
    pub(super) inner: Arc<Inner>,
    pub(super) floor: Arc<Floor>,
    pub(super) about: Arc<About>,
    pub(super) lines: Vec<Line>,
    pub(super) handlers: BTreeMap<QueueName, Arc<Handler>>,
    pub(super) slots: usize,
    /// Tracks which slots are free.
    pub(super) free: Arc<Slots>,
    pub(super) prefetch: Option<usize>,
    pub(super) ended: mpsc::UnboundedSender<Settle>,
    /// Cancelled when no more tasks are to be leased.
    pub(super) ending: CancellationToken,
    /// Cancelled when the handlers have to stop.
    pub(super) over: CancellationToken,
    /// Whether handlers that have to stop end by themselves, instead of being dropped.
    pub(super) patient: bool,
    /// Maximum run time of a handler; it is stopped after that.
    pub(super) max_runtime: Option<Ttl>,
}

/// Task whose lease the worker holds, and whose handler was not started.
struct InHand {
    task: Arc<Task>,
    ttl: Ttl,
    terms: watch::Receiver<Terms>,
}

/// State of the loop.
struct Shift {
    /// Leased tasks whose handlers were not started.
    ahead: VecDeque<InHand>,
    /// Running handlers, and the task of each of them.
    at_work: JoinSet<Ended>,
    tasks: BTreeMap<tokio::task::Id, (TaskId, Token)>,
    /// Moving average of the duration of handlers.
    pace: Option<Duration>,
    /// Index of the next group to query, and the number of groups left to query before it is
    /// certain that there are no tasks.
    turn: usize,
    hungry: usize,
    /// Time at which the next task is due.
    due: Option<BootInstant>,
    pause: Duration,
    /// Whether answers were lost that may have contained tasks.
    astray: bool,
    /// Maximum number of tasks per request: one after a lost answer, then doubled with each answer.
    /// The lost answer may have been too large for its timeout.
    most: usize,
    /// Whether the last answer ended before a task that must start at once: the next request waits
    /// until a slot is free.
    cut: bool,
    /// Running task beside which no other task may run.
    alone: Option<(TaskId, Token)>,
}

/// Result of a request for tasks.
struct Answer {
    sent: BootInstant,
    /// Request that was sent; `None` if the store was only queried for the leases that this worker
    /// has already.
    asked_for: Option<LeaseTasks>,
    leased: Result<Leased>,
}

type Asking = Pin<Box<dyn Future<Output = Answer> + Send>>;

impl Foreman {
    /// Runs until it is stopped and all attempts are done or handed to the settler.
    pub(super) async fn work(self) {
        let mut shift = Shift {
            ahead: VecDeque::new(),
            at_work: JoinSet::new(),
            tasks: BTreeMap::new(),
            pace: None,
            turn: 0,
            hungry: self.lines.len(),
            due: None,
            // Spreads the first requests of workers that start together after a downtime.
            pause: Duration::from_millis(fastrand::u64(0..50)),
            astray: false,
            most: usize::MAX,
            cut: false,
            alone: None,
        };
        let (mut asking, mut arrivals): (Option<Asking>, Option<QueueSubscription>) = (None, None);
        let mut told = false;
        loop {
            if self.over.is_cancelled() && !told {
                told = true;
                self.floor.stop_all();
            }
            self.start_handlers(&mut shift);
            let ending = self.ending.is_cancelled() || self.over.is_cancelled();
            if ending {
                self.about.draining.store(true, Ordering::Relaxed);
                (arrivals, asking) = (None, self.finish_asking(asking, &mut shift).await);
                self.give_back(&mut shift);
                if shift.at_work.is_empty() {
                    return;
                }
            }
            let room = if ending { 0 } else { self.room(&shift) };
            if room == 0 {
                arrivals = None;
            } else if arrivals.is_none() {
                arrivals = self.listen();
                shift.hungry = self.lines.len();
            }
            if room > 0 && shift.hungry > 0 && asking.is_none() {
                asking = Some(self.ask(&mut shift, room));
            }
            let waiting = room > 0 && shift.hungry == 0 && asking.is_none();
            let due = shift.due.map(|due| due.after(BootInstant::now()));
            tokio::select! {
                biased;
                () = self.over.cancelled(), if !told => {}
                () = self.ending.cancelled(), if !ending => {}
                Some(ended) = shift.at_work.join_next_with_id(), if !shift.at_work.is_empty() => {
                    self.settle(&mut shift, ended);
                    while let Some(ended) = shift.at_work.try_join_next_with_id() {
                        self.settle(&mut shift, ended);
                    }
                }
                // A slot is free: its attempt waits for a lock.
                () = self.free.left.notified() => {}
                answer = answer(&mut asking), if asking.is_some() => {
                    asking = None;
                    self.take(&mut shift, answer);
                }
                () = arrival(&mut arrivals, due), if waiting => {
                    shift.hungry = self.lines.len();
                    shift.due = None;
                }
            }
        }
    }

    fn listen(&self) -> Option<QueueSubscription> {
        let queues: Vec<QueueName> = self.handlers.keys().cloned().collect();
        self.inner.tasks().ok().map(|tasks| tasks.arrivals(&queues))
    }

    /// Returns the number of tasks that could be leased now. Completed tasks are not replaced one
    /// by one: a request for many tasks costs little more than a request for one.
    fn room(&self, shift: &Shift) -> usize {
        let in_hand = shift.at_work.len() + shift.ahead.len();
        // A task that runs alone waits until the others are done, and no task is leased meanwhile.
        let alone = shift.alone.is_some() || shift.ahead.back().is_some_and(|last| last.task.runs_alone());
        if alone || (shift.cut && in_hand >= self.slots) || self.floor.len() >= MOST_UNSETTLED + self.slots {
            return 0;
        }
        let can_fetch_ahead = self.inner.store.capabilities().tasks.ahead;
        let ahead = self.prefetch.unwrap_or_else(|| match shift.pace.filter(|_| can_fetch_ahead) {
            Some(pace) => {
                let each = AHEAD.as_micros() / pace.as_micros().max(1);
                usize::try_from(each).unwrap_or(MOST_AHEAD).saturating_mul(self.slots).min(MOST_AHEAD)
            }
            None => 0,
        });
        let in_hand = self.free.busy() + shift.ahead.len();
        let room = (self.slots + ahead).saturating_sub(in_hand);
        let enough = shift.ahead.len() * 2 > ahead && !shift.ahead.is_empty();
        if enough { 0 } else { room }
    }

    fn ask(&self, shift: &mut Shift, room: usize) -> Asking {
        if shift.astray {
            return self.look_for_strays(shift.pause);
        }
        let line = &self.lines[shift.turn % self.lines.len()];
        shift.turn += 1;
        let room = room.min(shift.most);
        // Tasks that are leased already start before those of this request.
        let free = self.slots.saturating_sub(shift.at_work.len() + shift.ahead.len());
        let ask = LeaseTasks {
            worker: self.about.info.id,
            queues: line.queues.clone(),
            max: u32::try_from(room).unwrap_or(u32::MAX),
            ttl: line.ttl,
            begin: u32::try_from(free).unwrap_or(u32::MAX),
            idle: shift.at_work.is_empty() && shift.ahead.is_empty(),
        };
        let (inner, pause, ending) = (self.inner.clone(), shift.pause, self.ending.clone());
        Box::pin(async move {
            let paused = ending.run_until_cancelled(rest(pause)).await;
            let sent = BootInstant::now();
            let leased = match (paused, inner.tasks()) {
                (Some(()), Ok(tasks)) => tasks.lease(&ask).await,
                (None, _) => Ok(Leased { tasks: Vec::new(), next_due: None, more: false, expired: 0 }),
                (_, Err(error)) => Err(error),
            };
            Answer { sent, asked_for: Some(ask), leased }
        })
    }

    /// Queries the store for the leases of this worker: a lost answer may have contained tasks. If
    /// their leases expired instead, that would count as attempts.
    fn look_for_strays(&self, pause: Duration) -> Asking {
        self.floor.remember();
        let (inner, ending) = (self.inner.clone(), self.ending.clone());
        let (floor, about, lines) = (self.floor.clone(), self.about.clone(), self.lines.clone());
        Box::pin(async move {
            ending.run_until_cancelled(rest(pause)).await;
            let found = strays(&inner, &floor, &about, &lines).await;
            let (sent, leased) = match found {
                Ok((sent, tasks)) => (sent, Ok(Leased { tasks, next_due: None, more: false, expired: 0 })),
                Err(error) => (BootInstant::now(), Err(error)),
            };
            Answer { sent, asked_for: None, leased }
        })
    }

    /// Registers the leased tasks.
    fn take(&self, shift: &mut Shift, answer: Answer) {
        let Answer { sent, asked_for, leased } = answer;
        match leased {
            Err(error) => {
                self.inner.contact.failed("no tasks could be asked for; trying again", &error);
                shift.astray = true;
                shift.most = 1;
                let longer = (shift.pause * 2).clamp(Duration::from_millis(100), LONGEST_PAUSE);
                shift.pause = longer.mul_f64(0.75 + 0.25 * fastrand::f64());
            }
            Ok(leased) => {
                self.inner.contact.answered();
                shift.pause = Duration::ZERO;
                if asked_for.is_some() {
                    shift.most = shift.most.saturating_mul(2);
                }
                // A group that returned fewer tasks than requested has no more. A group whose
                // answer is full may have more.
                match asked_for {
                    Some(ask) if !ask.is_full(&leased.tasks) && !leased.more => {
                        shift.hungry = shift.hungry.saturating_sub(1);
                    }
                    Some(_) => shift.hungry = self.lines.len(),
                    None => (shift.hungry, shift.astray) = (self.lines.len(), false),
                }
                shift.cut = leased.more;
                if let Some((due, now)) = leased.next_due {
                    let due = BootInstant::now().plus(due.since(now));
                    shift.due = Some(shift.due.map_or(due, |earlier| earlier.min(due)));
                }
                for task in leased.tasks {
                    let line = self.lines.iter().find(|line| line.queues.contains(&task.queue));
                    let Some(ttl) =
                        line.map(|line| line.ttl).filter(|_| !self.floor.knows(task.id, task.token))
                    else {
                        continue;
                    };
                    let terms = self.floor.take(&task, ttl, sent);
                    shift.ahead.push_back(InHand { task: Arc::new(task), ttl, terms });
                }
            }
        }
        self.floor.forget();
    }

    /// Waits for the request that is in flight: its answer may still contain tasks.
    async fn finish_asking(&self, asking: Option<Asking>, shift: &mut Shift) -> Option<Asking> {
        if let Some(asking) = asking {
            let answer = asking.await;
            self.take(shift, answer);
        }
        None
    }

    fn start_handlers(&self, shift: &mut Shift) {
        let ending = self.ending.is_cancelled() || self.over.is_cancelled();
        while !ending && shift.alone.is_none() {
            let waits = |next: &InHand| next.task.runs_alone() && !shift.at_work.is_empty();
            if shift.ahead.front().is_none_or(waits) {
                break;
            }
            let Some(slot) = self.free.try_take() else { break };
            let Some(InHand { task, ttl, terms }) = shift.ahead.pop_front() else { break };
            let lost = terms.borrow().stop == Some(Stop::Lost);
            if lost || self.floor.is_over(task.id, task.token, BootInstant::now()) {
                // The store may still have the lease: returning the task spares the wait for its
                // expiry.
                self.tell(task.id, task.token, AttemptResult::Return);
                continue;
            }
            let (floor, ending) = (self.floor.clone(), self.ending.clone());
            let (patient, max_runtime) = (self.patient, self.max_runtime);
            let ties = Ties { floor, terms, lock: None, ending, patient, max_runtime };
            let handler = self.handlers.get(&task.queue).cloned();
            let (id, token) = (task.id, task.token);
            let alone = task.runs_alone();
            // A task that may crash its worker starts only once the store knows it, so that the
            // attempt counts.
            let about = (alone && !task.begun).then(|| self.about.clone());
            self.floor.begin(id, token);
            let inner = self.inner.clone();
            let number = shift.at_work.spawn(async move {
                if let Some(about) = about
                    && let Some(ended) = tell_begun(&inner, &about, &task, ttl, &ties).await
                {
                    return ended;
                }
                attempt(inner, handler, task, ttl, ties, slot).await
            });
            shift.alone = alone.then_some((id, token));
            shift.tasks.insert(number.id(), (id, token));
        }
        let busy = u32::try_from(self.free.busy()).unwrap_or(u32::MAX);
        self.about.busy.store(busy, Ordering::Relaxed);
    }

    /// Gives back the tasks whose handlers were not started.
    fn give_back(&self, shift: &mut Shift) {
        for InHand { task, .. } in shift.ahead.drain(..) {
            self.tell(task.id, task.token, AttemptResult::Return);
        }
    }

    fn settle(&self, shift: &mut Shift, ended: Result<(tokio::task::Id, Ended), JoinError>) {
        let (number, ended) = match ended {
            Ok((number, ended)) => (number, ended),
            Err(error) => {
                let number = error.id();
                let why = Message::new(format!("the handler panicked: {}", panic_message(error)));
                (
                    number,
                    Ended {
                        verdict: AttemptResult::Retry(why, None),
                        took: Duration::ZERO,
                        has_waited: false,
                    },
                )
            }
        };
        let Some((id, token)) = shift.tasks.remove(&number) else { return };
        shift.alone = shift.alone.filter(|alone| *alone != (id, token));
        if !ended.has_waited {
            shift.pace = Some(shift.pace.map_or(ended.took, |pace| (pace * 7 + ended.took) / 8));
        }
        self.tell(id, token, ended.verdict);
    }

    fn tell(&self, id: TaskId, token: Token, verdict: AttemptResult) {
        // Cannot fail: the settler ends only after the foreman does.
        let _ = self.ended.send(Settle { id, token, verdict });
    }
}

/// Returns the leases that the store has for this worker and that the worker does not know, and the
/// time from which they are valid. A lease cannot be attributed to a request, because a lost
/// request may have reached the store late; therefore a heartbeat is sent for each lease first.
async fn strays(
    inner: &Inner,
    floor: &Floor,
    about: &About,
    lines: &[Line],
) -> Result<(BootInstant, Vec<Task>)> {
    let ask = ListTasks {
        state: Some(TaskState::Running),
        worker: Some(about.info.id),
        limit: 1000,
        brief: true,
        ..ListTasks::default()
    };
    let listed = running(inner, ask).await?;
    let tasks = inner.tasks()?;
    let (sent, mut found) = (BootInstant::now(), Vec::new());
    for line in lines {
        let news = |task: &&Task| line.queues.contains(&task.queue) && !floor.knows(task.id, task.token);
        let news: Vec<&Task> = listed.iter().filter(news).collect();
        if news.is_empty() {
            continue;
        }
        let held = |task: &&Task| HeldTask { begun: false, ..HeldTask::new(task.id, task.token) };
        let held: Vec<HeldTask> = news.iter().map(held).collect();
        let beats = tasks.heartbeat(&about.now(), &held, line.ttl).await?;
        for (task, _) in
            news.into_iter().zip(beats).filter(|(_, beat)| matches!(beat, HeartbeatResult::Extended(_)))
        {
            // One call per task, with its payload: each answer fits into the timeout of a call,
            // however many tasks there are.
            match tasks.get(task.id).await? {
                Some(whole) if (whole.state, whole.token) == (TaskState::Running, task.token) => {
                    found.push(whole);
                }
                _ => {}
            }
        }
    }
    Ok((sent, found))
}

/// Reports the start of a task, and waits until the store knows it. Returns the end of the attempt
/// if the task must not start after all.
async fn tell_begun(inner: &Inner, about: &About, task: &Task, ttl: Ttl, ties: &Ties) -> Option<Ended> {
    let (terms, floor) = (&ties.terms, &ties.floor);
    let ended = |verdict| Some(Ended { verdict, took: Duration::ZERO, has_waited: false });
    let mut is_known = false;
    loop {
        match terms.borrow().stop {
            None if is_known => return None,
            None => {}
            Some(Stop::Asked) => return ended(AttemptResult::Abort(None)),
            Some(Stop::Ending | Stop::Overdue | Stop::Lost) => return ended(AttemptResult::Return),
        }
        let (held, sent) = ([HeldTask::new(task.id, task.token)], BootInstant::now());
        let told = match inner.tasks() {
            Ok(tasks) => tasks.heartbeat(&about.now(), &held, ttl).await,
            Err(error) => Err(error),
        };
        match told {
            Ok(beats) => {
                floor.heard(&held, &beats, sent);
                is_known = true;
            }
            Err(error) => {
                tracing::warn!(%error, task = %task.id, "the start of a task could not be told; trying again");
                rest(Duration::from_millis(200)).await;
            }
        }
    }
}

/// Returns all tasks of a list, page by page.
async fn running(inner: &Inner, mut ask: ListTasks) -> Result<Vec<Task>> {
    let mut found = Vec::new();
    loop {
        let page = inner.tasks()?.list(&ask).await?;
        found.extend(page.items);
        ask.after = page.next;
        if ask.after.is_none() {
            return Ok(found);
        }
    }
}

/// Sleeps for this delay. Even the shortest sleep lasts until the timer's next tick, which is a
/// millisecond; therefore a delay of zero does not sleep at all.
async fn rest(pause: Duration) {
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
}

async fn answer(asking: &mut Option<Asking>) -> Answer {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

async fn arrival(arrivals: &mut Option<QueueSubscription>, due: Option<Duration>) {
    match arrivals {
        Some(arrivals) => arrivals.next(due).await,
        None => std::future::pending().await,
    }
}

fn panic_message(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "it was cancelled".to_owned() };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a word".to_owned())
}
