//! Events of tasks as they happen: a feed polls the records of tasks and reports what is new.
//!
//! A poll reads the newest tasks, the open tasks, and each task that was open at the last poll and is
//! in neither list. A task that is added and finished between two polls is among the newest: the order
//! of tasks is that of their ids, which contain the time of the caller that added them. If its clock is
//! late, the task is further back; therefore a poll reads on until a page has no new task, and every few
//! seconds a poll begins with a long page.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use super::admin::Tasks;
use super::history::TaskHistoryView;
use crate::client::context::parsed;
use crate::error::{Error, Result};
use crate::model::{
    Counts, QueueName, Task, TaskHistoryEvent, TaskHistoryKey, TaskId, TaskState, Timestamp, Token,
};
use crate::store::{BootInstant, Capabilities, Cursor, ListTasks, Page};

/// Time before the last poll from which the events of an unknown task are new: a transaction may end
/// after others that began later.
const MARGIN: Duration = Duration::from_secs(10);
/// Time for which a finished task is remembered. Longer than [`MARGIN`], so that none of its events is
/// reported again.
const REMEMBERED: Duration = Duration::from_mins(1);
/// Number of newest tasks that an idle poll reads.
const FIRST_PAGE: u32 = 50;
const PAGE: u32 = 1000;
/// Interval of the polls that begin with a long page. Shorter than [`MARGIN`].
const DEEP_EVERY: Duration = Duration::from_secs(4);
/// Maximum number of open tasks that a poll reads, and of newest tasks.
const MAX_READ: usize = 5000;
/// Maximum number of tasks that a poll reads one by one; the others follow with the next poll.
const MAX_SINGLE: usize = 1000;
/// Number of remembered tasks above which an open task that is in no list is forgotten.
const MAX_REMEMBERED: usize = 20_000;
const INTERVAL: Duration = Duration::from_millis(500);
const MAX_INTERVAL: Duration = Duration::from_mins(1);
/// Poll interval of an engine from which its calls count as costly.
const COSTLY_POLL: Duration = Duration::from_secs(5);
/// Minimum number of polls between two notices, if the number of tasks is near the maximum.
const NOTICE_POLLS: u64 = 100;

/// States of tasks that have not finished, those first whose tasks have events soon.
const OPEN: [TaskState; 4] =
    [TaskState::Running, TaskState::Pending, TaskState::Blocked, TaskState::Scheduled];

/// Follower of the events of tasks. It only reads, and remembers in memory what it has reported.
pub struct TaskFeed {
    tasks: Tasks,
    queue: Option<QueueName>,
    known: HashMap<TaskId, Known>,
    /// Events that were found and not returned yet: an error in the middle of a poll loses none.
    ready: Vec<TaskHistoryView>,
    /// Store time at the begin of the feed. Earlier events are not reported.
    began: Timestamp,
    /// Store time at the begin of the last complete poll.
    last: Timestamp,
    /// Store time at the begin of the last complete poll that began with a long page.
    deep: Timestamp,
    /// Number of polls.
    round: u64,
    /// Number of the last complete poll.
    completed: u64,
    /// Poll that has reported that the feed does not follow all tasks.
    noticed: Option<u64>,
    is_sampled: bool,
    /// Whether the newest tasks are listed by queue. A list of all queues needs no search for the tasks
    /// of one, but a token with scopes may not read it.
    lists_queue: bool,
    pause: Duration,
}

/// What is remembered of a task.
struct Known {
    /// Whether the task is of the queue that the feed follows.
    is_followed: bool,
    state: TaskState,
    token: Token,
    version: u64,
    keys: Vec<TaskHistoryKey>,
    newest: Timestamp,
    /// Poll that read the task first.
    first_round: u64,
    /// Poll that read the task last.
    round: u64,
}

/// Item of a [`TaskFeed`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum TaskFeedItem {
    /// Event of a task.
    Event(TaskHistoryView),
    /// Note that events may be missing.
    Notice(FeedNotice),
}

/// Note in a feed that events may be missing from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FeedNotice {
    /// Kind of the note: `sampled` if there are more open tasks than the feed follows, `missed` if the
    /// receiver was too slow.
    pub kind: &'static str,
    /// The note as a sentence.
    pub message: String,
}

impl FeedNotice {
    fn sampled() -> Self {
        let message = format!(
            "more than {MAX_READ} tasks are open or new: the feed follows those that run and the newest of the \
             others, and may miss events of the rest"
        );
        Self { kind: "sampled", message }
    }

    /// Returns the note for a receiver that was too slow to get all events.
    pub fn missed() -> Self {
        let message = "events are missing: the receiver was too slow".to_owned();
        Self { kind: "missed", message }
    }
}

impl Tasks {
    /// Follows the events of the tasks of one queue, from now on.
    pub async fn follow(&self, queue: impl TryInto<QueueName, Error: Into<Error>>) -> Result<TaskFeed> {
        TaskFeed::new(self.clone(), Some(parsed(queue)?)).await
    }

    /// Follows the events of the tasks of all queues, from now on.
    pub async fn follow_all(&self) -> Result<TaskFeed> {
        TaskFeed::new(self.clone(), None).await
    }
}

impl TaskFeed {
    async fn new(tasks: Tasks, queue: Option<QueueName>) -> Result<Self> {
        let (last, pause) = (tasks.store()?.now().await?, interval(&tasks.inner.capabilities));
        // The times of some engines are less exact than their clock.
        let began = before(last, tasks.inner.capabilities.clock_uncertainty);
        let mut feed = Self {
            lists_queue: queue.is_some() && is_costly(&tasks.inner.capabilities),
            tasks,
            queue,
            known: HashMap::new(),
            ready: Vec::new(),
            began,
            last,
            deep: last,
            round: 0,
            completed: 0,
            noticed: None,
            is_sampled: false,
            pause,
        };
        feed.read_all(FIRST_PAGE).await?;
        feed.completed = feed.round;
        // What has happened before is remembered and not reported.
        feed.ready.clear();
        Ok(feed)
    }

    /// Waits for events and returns them, oldest first. An error concerns a single poll: the next call
    /// polls again and misses nothing.
    pub async fn next(&mut self) -> Result<Vec<TaskFeedItem>> {
        loop {
            tokio::time::sleep(self.pause).await;
            let items = self.poll().await?;
            if !items.is_empty() {
                return Ok(items);
            }
        }
    }

    /// Returns the time to wait before the next [`poll`](Self::poll): longer if polls are slow, and on an
    /// engine whose calls are limited.
    pub const fn interval(&self) -> Duration {
        self.pause
    }

    /// Reads the tasks at once, and returns the events that are new, oldest first.
    pub async fn poll(&mut self) -> Result<Vec<TaskFeedItem>> {
        let (began, quick) = (BootInstant::now(), interval(&self.tasks.inner.capabilities));
        let now = self.tasks.store()?.now().await?;
        let is_deep = now.since(self.deep) >= DEEP_EVERY;
        let is_complete = self.read_all(if is_deep { PAGE } else { FIRST_PAGE }).await?;
        let was_sampled = std::mem::replace(&mut self.is_sampled, !is_complete);
        self.forget();
        (self.last, self.completed) = (now, self.round);
        if is_deep {
            self.deep = now;
        }
        // The reads take at most a tenth of the time, however many tasks there are.
        self.pause = (BootInstant::now().after(began) * 9).clamp(quick, MAX_INTERVAL.max(quick));
        self.ready.sort_by_key(|event| event.at);
        let mut items: Vec<_> = self.ready.drain(..).map(TaskFeedItem::Event).collect();
        let is_due = self.noticed.is_none_or(|noticed| self.round - noticed >= NOTICE_POLLS);
        if self.is_sampled && !was_sampled && is_due {
            self.noticed = Some(self.round);
            items.push(TaskFeedItem::Notice(FeedNotice::sampled()));
        }
        Ok(items)
    }

    /// Reads all tasks that may have new events. Returns `false` if there are too many.
    async fn read_all(&mut self, first_page: u32) -> Result<bool> {
        self.round += 1;
        let newest = self.read_newest(first_page).await?;
        // A costly engine lists all tasks of a queue with the same requests as some of them.
        let lists = if is_costly(&self.tasks.inner.capabilities) {
            [if newest { ListLimit::Complete } else { ListLimit::NotRead }; 4]
        } else {
            self.read_open().await?
        };
        self.read_missing(&lists).await?;
        Ok(newest && lists.iter().all(|list| *list == ListLimit::Complete))
    }

    /// Reads the newest tasks, back to a page without a new one. Returns `false` if there are too many.
    async fn read_newest(&mut self, first_page: u32) -> Result<bool> {
        let all = is_costly(&self.tasks.inner.capabilities);
        let (mut read, mut after, mut limit) = (0, None, if all { PAGE } else { first_page });
        loop {
            let page = self.newest_page(after, limit).await?;
            read += page.items.len();
            let mut is_new = all;
            for task in &page.items {
                is_new |= self.take(task);
            }
            match page.next {
                Some(_) if is_new && read >= MAX_READ => return Ok(false),
                Some(next) if is_new => (after, limit) = (Some(next), PAGE),
                _ => return Ok(true),
            }
        }
    }

    async fn newest_page(&mut self, after: Option<Cursor>, limit: u32) -> Result<Page<Task>> {
        let query = ListTasks::default().archived(true).brief(true).after(after).limit(limit);
        if !self.lists_queue {
            match self.tasks.list(&query).await {
                Err(error) if error.is_not_permitted() && self.queue.is_some() => self.lists_queue = true,
                page => return page,
            }
        }
        self.tasks.list(&query.queue(self.queue.clone())).await
    }

    /// Reads the open tasks, and returns how far the list of each state of [`OPEN`] goes.
    async fn read_open(&mut self) -> Result<[ListLimit; 4]> {
        let (counts, mut left) = (self.counts().await?, MAX_READ);
        let mut lists = [ListLimit::Complete; 4];
        for (state, list) in OPEN.into_iter().zip(&mut lists) {
            let count = counts.as_ref().map(|counts| counts.get(state));
            if count.is_some_and(|count| count > left as u64) {
                // The first part of the list would be the newest tasks, which workers take last.
                *list = ListLimit::NotRead;
            } else if count != Some(0) && !(state == TaskState::Blocked && self.knows_blocked()) {
                (*list, left) = self.read_state(state, left).await?;
            }
        }
        Ok(lists)
    }

    /// Reads up to `left` tasks in this state, and returns how far the list goes and what is left.
    async fn read_state(&mut self, state: TaskState, mut left: usize) -> Result<(ListLimit, usize)> {
        let (mut after, mut limit) = (None, ListLimit::NotRead);
        while left > 0 {
            let query = ListTasks::default().queue(self.queue.clone()).state(state).brief(true).after(after);
            let page = self.tasks.list(&query.limit(PAGE)).await?;
            left = left.saturating_sub(page.items.len());
            for task in &page.items {
                self.take(task);
                limit = ListLimit::DownTo(task.id);
            }
            after = page.next;
            if after.is_none() {
                return Ok((ListLimit::Complete, left));
            }
        }
        Ok((limit, left))
    }

    /// Returns the number of tasks in each state; `None` for a token that may not read it.
    async fn counts(&self) -> Result<Option<Counts>> {
        let store = self.tasks.store()?;
        let counts = match &self.queue {
            Some(queue) => store.queue(queue).await.map(|status| status.into_iter().collect()),
            None => store.queues().await,
        };
        match counts {
            Ok(queues) => {
                let mut sum = Counts::default();
                for state in OPEN {
                    sum.set(state, queues.iter().map(|status| status.counts.get(state)).sum());
                }
                Ok(Some(sum))
            }
            Err(error) if error.is_not_permitted() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether all blocked tasks are known, so that they are read one by one: Redis has no list of them,
    /// and would read all tasks for one.
    fn knows_blocked(&self) -> bool {
        self.round > 1 && matches!(self.tasks.inner.capabilities.engine, "redis" | "http")
    }

    /// Reads the tasks that were open and that the lists should contain but do not: they have finished,
    /// or have changed their state between two lists.
    async fn read_missing(&mut self, lists: &[ListLimit; 4]) -> Result<()> {
        let is_missing = |(id, known): &(&TaskId, &Known)| {
            let list = OPEN.iter().position(|state| *state == known.state);
            let is_listed = list.is_some_and(|list| lists[list].contains(**id));
            known.is_followed && known.round != self.round && is_listed
        };
        let missing = self.known.iter().filter(is_missing);
        let mut missing: Vec<_> = missing.map(|(id, known)| (known.round, *id)).collect();
        missing.sort_unstable();
        for (_, id) in missing.into_iter().take(MAX_SINGLE) {
            match self.tasks.store()?.get(id).await? {
                Some(task) => _ = self.take(&task),
                None => _ = self.known.remove(&id),
            }
        }
        Ok(())
    }

    /// Compares a record with what is remembered of the task, and keeps the new events. Returns whether
    /// the task was added since the last complete poll.
    fn take(&mut self, task: &Task) -> bool {
        let (since, round) = (before(self.last, MARGIN).max(self.began), self.round);
        let is_followed = self.queue.as_ref().is_none_or(|queue| *queue == task.queue);
        let Some(known) = self.known.get_mut(&task.id) else {
            let history = if is_followed { task.history() } else { Vec::new() };
            self.known.insert(task.id, Known { is_followed, ..Known::new(task, &history, round) });
            let new = history.into_iter().filter(|event| event.at >= since);
            self.ready.extend(new.map(|event| TaskHistoryView::new(task, event)));
            return task.created_at >= since;
        };
        known.round = round;
        let is_new = known.first_round > self.completed && task.created_at >= since;
        let is_same = (known.state, known.token, known.version) == (task.state, task.token, task.version);
        if is_same || !is_followed {
            return is_new;
        }
        let new = task.history_after(&known.keys);
        let first_round = known.first_round;
        let mut changed = Known { first_round, ..Known::new(task, &task.history(), round) };
        if task.version < known.version {
            // A cache of the engine may be late: what was reported stays known.
            changed.keys.append(&mut known.keys);
            changed.newest = changed.newest.max(known.newest);
        }
        *known = changed;
        self.ready.extend(new.into_iter().map(|event| TaskHistoryView::new(task, event)));
        is_new
    }

    /// Forgets tasks whose events are so old that they would not be reported again.
    fn forget(&mut self) {
        let (round, oldest) = (self.round, before(self.last, REMEMBERED));
        let has_room = self.known.len() <= MAX_REMEMBERED;
        self.known.retain(|_, known| {
            let is_open = known.is_followed && !known.state.is_terminal();
            known.round == round || known.newest >= oldest || (is_open && has_room)
        });
    }
}

impl Known {
    fn new(task: &Task, history: &[TaskHistoryEvent], round: u64) -> Self {
        Self {
            is_followed: true,
            state: task.state,
            token: task.token,
            version: task.version,
            keys: history.iter().map(TaskHistoryEvent::key).collect(),
            newest: history.iter().map(|event| event.at).max().unwrap_or(task.created_at),
            first_round: round,
            round,
        }
    }
}

/// How far a list of tasks, newest first, was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListLimit {
    Complete,
    /// To this task; older ones were not read.
    DownTo(TaskId),
    NotRead,
}

impl ListLimit {
    /// Whether the list would contain this task.
    fn contains(self, id: TaskId) -> bool {
        match self {
            Self::Complete => true,
            Self::DownTo(oldest) => id >= oldest,
            Self::NotRead => false,
        }
    }
}

fn before(time: Timestamp, earlier: Duration) -> Timestamp {
    let micros = u64::try_from(earlier.as_micros()).unwrap_or(u64::MAX);
    Timestamp::from_micros(time.as_micros().saturating_sub(micros))
}

/// Whether each call of the engine is limited or paid for.
fn is_costly(capabilities: &Capabilities) -> bool {
    capabilities.poll >= COSTLY_POLL
}

/// Returns the minimum interval between two polls.
fn interval(capabilities: &Capabilities) -> Duration {
    if is_costly(capabilities) { capabilities.poll * 3 } else { INTERVAL }
}
