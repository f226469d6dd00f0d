//! Taking tasks and starting handlers.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::attempt::{Ended, attempt};
use super::floor::{Floor, Stop, Terms};
use super::pulse::About;
use super::running::Ties;
use super::slots::Slots;
use crate::client::leasehold::Inner;
use crate::error::Result;
use crate::model::{
    Beat, HeldTask, LeaseTasks, Leased, Note, QueueName, Settle, Task, TaskId, TaskState, Token, Ttl, Verdict,
};
use crate::store::{Arrivals, ListTasks, Moment};

/// What a handler is, whatever the type of its tasks.
pub(in crate::client) type Handler =
    dyn Fn(Arc<Task>, Option<Token>, Ties) -> Pin<Box<dyn Future<Output = Verdict> + Send>> + Send + Sync;

/// Tasks are taken ahead for so long.
const AHEAD: Duration = Duration::from_millis(20);
/// No more than so many are taken ahead, or at once.
const MOST_AHEAD: usize = 200;
/// With so many attempts that the store could not yet be told of, no more tasks are taken.
const MOST_UNSETTLED: usize = 2000;
/// The longest pause while the store cannot be reached.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Queues whose leases last equally long.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) ttl: Ttl,
    pub(super) queues: Vec<QueueName>,
}

/// What is needed to take tasks and start handlers.
pub(super) struct Foreman {
    pub(super) inner: Arc<Inner>,
    pub(super) floor: Arc<Floor>,
    pub(super) about: Arc<About>,
    pub(super) lines: Vec<Line>,
    pub(super) handlers: BTreeMap<QueueName, Arc<Handler>>,
    pub(super) slots: usize,
    /// Which of them are free.
    pub(super) free: Arc<Slots>,
    pub(super) prefetch: Option<usize>,
    pub(super) ended: mpsc::UnboundedSender<Settle>,
    /// No more tasks are taken.
    pub(super) ending: CancellationToken,
    /// Handlers are stopped.
    pub(super) over: CancellationToken,
    /// Handlers that are stopped end by themselves.
    pub(super) patient: bool,
    /// A handler is stopped when it has run for this long.
    pub(super) max_runtime: Option<Ttl>,
}

/// A task that is in hand.
struct InHand {
    task: Arc<Task>,
    ttl: Ttl,
    terms: watch::Receiver<Terms>,
}

/// What is going on.
struct Shift {
    /// In hand, but not begun.
    ahead: VecDeque<InHand>,
    /// Handlers at work, and on which task each of them is.
    at_work: JoinSet<Ended>,
    tasks: BTreeMap<tokio::task::Id, (TaskId, Token)>,
    /// How long handlers take, on the average of late.
    pace: Option<Duration>,
    /// The line to ask next, and how many more have to be asked before there is nothing for certain.
    turn: usize,
    hungry: usize,
    /// When the next task is due.
    due: Option<Moment>,
    pause: Duration,
    /// Answers were lost that may have brought tasks.
    astray: bool,
    /// No more than so many are asked for: after an answer that did not come only one, then twice as many each time. The
    /// answer may have been too large for the time it had.
    most: usize,
    /// The last answer ended before a task that must start at once: the next one waits until a slot is free.
    cut: bool,
    /// The task at work beside which nothing else runs.
    alone: Option<(TaskId, Token)>,
}

/// What came of asking for tasks.
struct Answer {
    sent: Moment,
    /// What was asked for; nothing if it was only asked what was given already.
    asked_for: Option<LeaseTasks>,
    leased: Result<Leased>,
}

type Asking = Pin<Box<dyn Future<Output = Answer> + Send>>;

impl Foreman {
    /// Works until it is told to end and everything is done or handed to the settler.
    pub(super) async fn work(self) {
        let mut shift = Shift {
            ahead: VecDeque::new(),
            at_work: JoinSet::new(),
            tasks: BTreeMap::new(),
            pace: None,
            turn: 0,
            hungry: self.lines.len(),
            due: None,
            // Workers that start together after a downtime do not ask together.
            pause: Duration::from_millis(fastrand::u64(0..50)),
            astray: false,
            most: usize::MAX,
            cut: false,
            alone: None,
        };
        let (mut asking, mut arrivals): (Option<Asking>, Option<Arrivals>) = (None, None);
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
            let due = shift.due.map(|due| due.after(Moment::now()));
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

    fn listen(&self) -> Option<Arrivals> {
        let queues: Vec<QueueName> = self.handlers.keys().cloned().collect();
        self.inner.tasks().ok().map(|tasks| tasks.arrivals(&queues))
    }

    /// How many tasks could be taken now. Not every single one that is worked off is replaced at once: asking for many
    /// costs little more than asking for one.
    fn room(&self, shift: &Shift) -> usize {
        let in_hand = shift.at_work.len() + shift.ahead.len();
        // A task that runs alone waits until the others are done, and nothing is taken meanwhile.
        let alone = shift.alone.is_some() || shift.ahead.back().is_some_and(|last| last.task.runs_alone());
        if alone || (shift.cut && in_hand >= self.slots) || self.floor.len() >= MOST_UNSETTLED + self.slots {
            return 0;
        }
        let can_fetch_ahead = self.inner.store.abilities().tasks.ahead;
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
        // What is in hand already is started before what comes now.
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
            let sent = Moment::now();
            let leased = match (paused, inner.tasks()) {
                (Some(()), Ok(tasks)) => tasks.lease(&ask).await,
                (None, _) => Ok(Leased { tasks: Vec::new(), next_due: None, more: false, expired: 0 }),
                (_, Err(error)) => Err(error),
            };
            Answer { sent, asked_for: Some(ask), leased }
        })
    }

    /// An answer that was lost may have brought tasks. Rather than let their leases run out, and count that as attempts,
    /// ask the store what this worker has.
    fn look_for_strays(&self, pause: Duration) -> Asking {
        self.floor.remember();
        let (inner, ending) = (self.inner.clone(), self.ending.clone());
        let (floor, about, lines) = (self.floor.clone(), self.about.clone(), self.lines.clone());
        Box::pin(async move {
            ending.run_until_cancelled(rest(pause)).await;
            let found = strays(&inner, &floor, &about, &lines).await;
            let (sent, leased) = match found {
                Ok((sent, tasks)) => (sent, Ok(Leased { tasks, next_due: None, more: false, expired: 0 })),
                Err(error) => (Moment::now(), Err(error)),
            };
            Answer { sent, asked_for: None, leased }
        })
    }

    /// Takes in hand what was leased.
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
                // A line that gave less than it was asked for has no more. One whose answer is full may have more.
                match asked_for {
                    Some(ask) if !ask.is_full(&leased.tasks) && !leased.more => {
                        shift.hungry = shift.hungry.saturating_sub(1);
                    }
                    Some(_) => shift.hungry = self.lines.len(),
                    None => (shift.hungry, shift.astray) = (self.lines.len(), false),
                }
                shift.cut = leased.more;
                if let Some((due, now)) = leased.next_due {
                    let due = Moment::now().plus(due.since(now));
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

    /// What was asked for before the end may still come.
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
            if lost || self.floor.is_over(task.id, task.token, Moment::now()) {
                // The store may still have the lease: it need not wait for its end.
                self.tell(task.id, task.token, Verdict::Return);
                continue;
            }
            let (floor, ending) = (self.floor.clone(), self.ending.clone());
            let (patient, max_runtime) = (self.patient, self.max_runtime);
            let ties = Ties { floor, terms, lock: None, ending, patient, max_runtime };
            let handler = self.handlers.get(&task.queue).cloned();
            let (id, token) = (task.id, task.token);
            let alone = task.runs_alone();
            // What may crash its worker begins only once the store knows it, so that the attempt counts.
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

    /// Gives back what has not been begun.
    fn give_back(&self, shift: &mut Shift) {
        for InHand { task, .. } in shift.ahead.drain(..) {
            self.tell(task.id, task.token, Verdict::Return);
        }
    }

    fn settle(&self, shift: &mut Shift, ended: Result<(tokio::task::Id, Ended), JoinError>) {
        let (number, ended) = match ended {
            Ok((number, ended)) => (number, ended),
            Err(error) => {
                let number = error.id();
                let why = Note::new(format!("the handler panicked: {}", panic_message(error)));
                (
                    number,
                    Ended { verdict: Verdict::Retry(why, None), took: Duration::ZERO, has_waited: false },
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

    fn tell(&self, id: TaskId, token: Token, verdict: Verdict) {
        // The settler ends only after the foreman does.
        let _ = self.ended.send(Settle { id, token, verdict });
    }
}

/// The leases that the store says this worker has and that it does not know, and the moment from which they last. To
/// which asking each belongs cannot be known, as one that was lost may have reached the store late; so a sign of life
/// is given for each of them first.
async fn strays(inner: &Inner, floor: &Floor, about: &About, lines: &[Line]) -> Result<(Moment, Vec<Task>)> {
    let ask = ListTasks {
        state: Some(TaskState::Running),
        worker: Some(about.info.id),
        limit: 1000,
        brief: true,
        ..ListTasks::default()
    };
    let listed = running(inner, ask).await?;
    let tasks = inner.tasks()?;
    let (sent, mut found) = (Moment::now(), Vec::new());
    for line in lines {
        let news = |task: &&Task| line.queues.contains(&task.queue) && !floor.knows(task.id, task.token);
        let news: Vec<&Task> = listed.iter().filter(news).collect();
        if news.is_empty() {
            continue;
        }
        let held = |task: &&Task| HeldTask { begun: false, ..HeldTask::new(task.id, task.token) };
        let held: Vec<HeldTask> = news.iter().map(held).collect();
        let beats = tasks.heartbeat(&about.now(), &held, line.ttl).await?;
        for (task, _) in news.into_iter().zip(beats).filter(|(_, beat)| matches!(beat, Beat::Kept(_))) {
            // One by one with its payload: however many there are, each fits into the time of a call.
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

/// Tells the store that a task begins, and waits until it knows. Gives how the attempt ended if it must not begin after all.
async fn tell_begun(inner: &Inner, about: &About, task: &Task, ttl: Ttl, ties: &Ties) -> Option<Ended> {
    let (terms, floor) = (&ties.terms, &ties.floor);
    let ended = |verdict| Some(Ended { verdict, took: Duration::ZERO, has_waited: false });
    let mut is_known = false;
    loop {
        match terms.borrow().stop {
            None if is_known => return None,
            None => {}
            Some(Stop::Asked) => return ended(Verdict::Abort(None)),
            Some(Stop::Ending | Stop::Overdue | Stop::Lost) => return ended(Verdict::Return),
        }
        let (held, sent) = ([HeldTask::new(task.id, task.token)], Moment::now());
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

/// All that a list has, page by page.
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

/// A pause. Even the shortest sleep lasts until the timer's next tick, which is a millisecond: no pause is none.
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

async fn arrival(arrivals: &mut Option<Arrivals>, due: Option<Duration>) {
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
