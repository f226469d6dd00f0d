//! Reads the data of a page, after the checks that the API makes for the same data.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold::client::LockExplanation;
use leasehold::model::{
    ExecutionInput, LockName, LockRecord, QueueName, QueueStatus, Task, TaskReason, TaskState,
    TaskSurroundings, Timestamp, WorkerStatus,
};
use leasehold::store::{Cursor, EventRange, ListEvents, ListLocks, ListTasks, LockState, Page};
use leasehold::{BootInstant, ListExecutions};

use super::data::{
    Content, Data, HealthContent, LockContent, OverviewContent, TaskContent, TasksContent, refresh_interval,
};
use super::figures::recorder;
use super::live::deadlocks::KnownDeadlocks;
use super::view::{AuditView, ExecutionsView, LocksView, TasksView, View};
use crate::access::Identity;
use crate::api::page_parts::list_executions;
use crate::problem::ApiResult;
use crate::server::App;

/// Maximum number of rows of a page.
const PAGE_SIZE: u32 = 50;
/// Maximum number of locks that are read for one page with a filter that the store cannot apply.
const MAX_SCANNED: u32 = 5_000;
/// Age up to which figures are used again; they change once a minute.
const FIGURES_MAX_AGE: Duration = Duration::from_secs(20);
/// Number of locks among which the overview finds those with the most waiters.
const OVERVIEW_LOCKS: u32 = 500;
/// Maximum number of events of a lock in the timeline.
const TIMELINE_EVENTS: u32 = 500;
/// Length of the timeline.
pub(crate) const TIMELINE: Duration = Duration::from_hours(24);
/// Maximum number of locks that are read to explain the tasks of one page.
const MAX_EXPLAINED_LOCKS: usize = 20;

/// Returns the data of a page for this viewer. Viewers of the same page share one read.
pub(super) async fn load(app: &App, identity: &Identity, view: &View) -> ApiResult<Arc<Data>> {
    may_view(identity, view)?;
    let data = shared(app, view).await?;
    may_see(identity, &data)?;
    Ok(data)
}

/// Returns the data of a page, not older than the refresh interval. The caller has checked the viewer.
pub(super) async fn shared(app: &App, view: &View) -> ApiResult<Arc<Data>> {
    let max_age = refresh_interval(&app.leasehold.capabilities());
    app.dashboard.snapshots.get(view, max_age, read(app, view)).await
}

/// Checks what can be checked before the data are read.
pub(super) fn may_view(identity: &Identity, view: &View) -> ApiResult<()> {
    match view {
        View::Locks(view) => identity.must_reach_locks(Some(view.prefix.as_str())),
        View::Lock { name, .. } => identity.must_reach_lock(name),
        View::Tasks(view) => identity.must_reach_queues(view.queue.as_ref()),
        // Checked with the queue of the task.
        View::Task(_) | View::Execution(_) => Ok(()),
        View::Overview(_)
        | View::Queues
        | View::Executions(_)
        | View::Schedules
        | View::Workers
        | View::Audit(_)
        | View::Health => identity.must_reach_all(),
    }
}

/// Checks a task or an execution, whose queue is known only now.
pub(super) fn may_see(identity: &Identity, data: &Data) -> ApiResult<()> {
    match &data.content {
        Content::Task(task) => identity.must_reach_queue(&task.explanation.task.queue),
        Content::Execution(execution) => identity.must_reach_queue(&execution.workflow.queue()),
        _ => Ok(()),
    }
}

async fn read(app: &App, view: &View) -> ApiResult<Data> {
    let content = match view {
        View::Overview(_) => overview(app).await?,
        View::Locks(view) => locks(app, view).await?,
        View::Lock { name, before } => lock(app, name, before.as_deref()).await?,
        View::Queues => Content::Queues(app.leasehold.tasks()?.queues().await?),
        View::Tasks(view) => tasks(app, view).await?,
        View::Task(id) => {
            let tasks = app.leasehold.tasks()?;
            let explanation = tasks.why(*id).await?;
            Content::Task(Box::new(TaskContent { explanation, output: tasks.output(*id).await? }))
        }
        View::Executions(view) => executions(app, view).await?,
        View::Execution(id) => Content::Execution(Box::new(app.leasehold.workflows()?.get(*id).await?)),
        View::Schedules => Content::Schedules(app.leasehold.schedules()?.list().await?),
        View::Workers => Content::Workers(app.leasehold.tasks()?.workers().await?),
        View::Audit(view) => audit(app, view).await?,
        View::Health => health(app).await?,
    };
    Ok(Data { now: app.leasehold.now().await?, content })
}

async fn overview(app: &App) -> ApiResult<Content> {
    let query = ListLocks::default().state(LockState::InUse).limit(OVERVIEW_LOCKS);
    let (mut locks, more) = explained_locks(app, &query, |_| true).await?;
    if more.is_some() {
        // The locks with waiters may be among those that are not in this page.
        let (mut waited, _) = explained_locks(app, &query.state(LockState::Waited), |_| true).await?;
        let known: HashSet<LockName> = locks.iter().map(|lock| lock.status.name.clone()).collect();
        waited.retain(|lock| !known.contains(&lock.status.name));
        locks.extend(waited);
    }
    locks.sort_by_key(|lock| std::cmp::Reverse(lock.status.waiters.len()));
    let now = app.leasehold.now().await?;
    let (mut queues, mut dead_workers) = (Vec::new(), Vec::new());
    if let Ok(tasks) = app.leasehold.tasks() {
        queues = tasks.queues().await?;
        queues.retain(|queue| queue.paused.is_some() || queue.counts.get(TaskState::Failed) > 0);
        dead_workers = tasks.workers().await?;
        dead_workers.retain(|worker| worker.is_dead(now));
    }
    let figures = async { Ok(recorder::read(&app.leasehold, now).await?) };
    let figures = app.dashboard.figures.get(&(), FIGURES_MAX_AGE, figures).await?;
    let (figures, bounds) = (*figures).clone();
    let counts = app.metrics.read().await.1;
    // Last: on an engine with one connection, the other reads would wait for this search.
    let deadlocks = deadlocks(app).await?;
    Ok(Content::Overview(Box::new(OverviewContent {
        counts,
        locks,
        deadlocks,
        queues,
        dead_workers,
        figures,
        bounds,
    })))
}

async fn locks(app: &App, view: &LocksView) -> ApiResult<Content> {
    let state = view.state.map_or(Some(LockState::InUse), super::view::LockTab::state);
    let prefix = Some(view.prefix.clone()).filter(|prefix| !prefix.is_empty());
    let query = ListLocks::default().prefix(prefix).state(state);
    let (mut locks, mut scanned) = (Vec::new(), 0);
    let mut after = view.after.clone().map(Cursor);
    loop {
        // If few locks match, larger parts need fewer calls, and the page still does not become long.
        let are_rare = scanned > 0 && locks.len() < scanned as usize / 10;
        let size = if are_rare { 10 * PAGE_SIZE } else { PAGE_SIZE };
        let query = query.clone().after(after.take()).limit(size);
        let (page, next) = explained_locks(app, &query, |record| has_holder(record, &view.holder)).await?;
        scanned += size;
        locks.extend(page);
        after = next;
        if after.is_none() || locks.len() >= PAGE_SIZE as usize || scanned >= MAX_SCANNED {
            return Ok(Content::Locks { locks, next: after.map(|next| next.0) });
        }
        if view.holder.is_empty() {
            return Ok(Content::Locks { locks, next: after.map(|next| next.0) });
        }
    }
}

/// Returns the wanted locks of one page, each explained by its record alone.
async fn explained_locks(
    app: &App,
    query: &ListLocks,
    is_wanted: impl Fn(&LockRecord) -> bool,
) -> ApiResult<(Vec<LockExplanation>, Option<Cursor>)> {
    let store = app.leasehold.store();
    let locks = store.locks();
    let page = locks.list(query).await?;
    let now = locks.now().await?;
    let wanted = page.items.iter().filter(|record| is_wanted(record));
    Ok((wanted.map(|record| LockExplanation::of(record, &[], now)).collect(), page.next))
}

async fn deadlocks(app: &App) -> ApiResult<KnownDeadlocks> {
    let interval = refresh_interval(&app.leasehold.capabilities());
    app.dashboard.deadlocks.get(&app.leasehold, interval).await
}

fn has_holder(record: &LockRecord, part: &str) -> bool {
    part.is_empty() || record.holders.iter().any(|lease| lease.request.holder.as_str().contains(part))
}

async fn lock(app: &App, name: &LockName, before: Option<&str>) -> ApiResult<Content> {
    let locks = app.leasehold.locks();
    let explanation = locks.why(name).await?;
    let recent = ListEvents::default().lock(name.clone()).limit(TIMELINE_EVENTS);
    let mut recent = locks.history(&recent).await?.items;
    let page = if before.is_none() && recent.len() < PAGE_SIZE as usize {
        // All events of the lock have been read. A second read would not be cheap for a lock that is no
        // longer stored, whose events SQLite finds among all others.
        Page::new(recent.clone(), None)
    } else {
        let span = before.map_or(EventRange::Newest, |before| EventRange::Before(Cursor(before.to_owned())));
        locks.history(&ListEvents::default().lock(name.clone()).span(span).limit(PAGE_SIZE)).await?
    };
    let start = explanation.status.now.minus(TIMELINE);
    // One event before the timeline begins tells whether the lock was held at its begin.
    let within = recent.iter().position(|event| event.at < start).map_or(recent.len(), |first| first + 1);
    recent.truncate(within);
    let is_waited = !explanation.status.waiters.is_empty();
    let deadlocks = if is_waited { deadlocks(app).await? } else { KnownDeadlocks::NotSearched };
    let next = page.next.map(|next| next.0).filter(|_| page.items.len() >= PAGE_SIZE as usize);
    Ok(Content::Lock(Box::new(LockContent { explanation, deadlocks, events: page.items, next, recent })))
}

async fn tasks(app: &App, view: &TasksView) -> ApiResult<Content> {
    let all = app.leasehold.tasks()?;
    let query = ListTasks::default()
        .queue(view.queue.clone())
        .state(view.state.map(super::view::TaskStateKey::get))
        .lock(view.lock.clone())
        .brief(true)
        .after(view.after.clone().map(Cursor))
        .limit(PAGE_SIZE);
    let page = all.list(&query).await?;
    let queues = all.queues().await?;
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    for queue in queues.iter().filter(|queue| view.queue.as_ref().is_none_or(|name| queue.queue == *name)) {
        for state in TaskState::ALL {
            *counts.entry(state.as_str()).or_default() += queue.counts.get(state);
        }
    }
    let around = Surroundings::read(app, &page.items, queues).await?;
    let tasks = page.items.into_iter().map(|task| {
        let reason = around.explain(&task);
        // The list does not show results, which may be large.
        (Task { result: None, ..task }, reason)
    });
    let tasks = tasks.collect();
    Ok(Content::Tasks(Box::new(TasksContent { tasks, next: page.next.map(|next| next.0), counts })))
}

/// State around the tasks of one page, read once for all of them.
struct Surroundings {
    now: Timestamp,
    queues: Vec<QueueStatus>,
    workers: Vec<WorkerStatus>,
    locks: HashMap<LockName, Option<LockRecord>>,
    heads: HashMap<(QueueName, LockName), Option<Task>>,
}

impl Surroundings {
    async fn read(app: &App, tasks: &[Task], queues: Vec<QueueStatus>) -> ApiResult<Self> {
        let all = app.leasehold.tasks()?;
        let now = app.leasehold.now().await?;
        let mut around =
            Self { now, queues, workers: Vec::new(), locks: HashMap::new(), heads: HashMap::new() };
        if tasks.iter().all(|task| task.state.is_terminal()) {
            return Ok(around);
        }
        around.workers = all.workers().await?;
        let store = app.leasehold.store();
        for task in tasks.iter().filter(|task| !task.state.is_terminal()) {
            let Some(lock) = &task.lock else { continue };
            if !around.locks.contains_key(lock) && around.locks.len() < MAX_EXPLAINED_LOCKS {
                around.locks.insert(lock.clone(), store.locks().get(lock).await?);
            }
            let place = (task.queue.clone(), lock.clone());
            let is_new = task.state == TaskState::Blocked && !around.heads.contains_key(&place);
            if is_new && around.heads.len() < MAX_EXPLAINED_LOCKS {
                let mut head = None;
                for state in [TaskState::Running, TaskState::Pending] {
                    let query = ListTasks::default().queue(task.queue.clone()).lock(lock.clone());
                    let query = query.state(state).brief(true).limit(1);
                    head = head.or(all.list(&query).await?.items.pop());
                }
                around.heads.insert(place, head);
            }
        }
        Ok(around)
    }

    /// Returns the most important reason why the task does not run now; `None` if too much would have to
    /// be read to know it.
    fn explain(&self, task: &Task) -> Option<TaskReason> {
        let lock = match &task.lock {
            Some(lock) if !task.state.is_terminal() => self.locks.get(lock)?.as_ref(),
            _ => None,
        };
        let head = match (&task.lock, task.state) {
            (Some(lock), TaskState::Blocked) => self.heads.get(&(task.queue.clone(), lock.clone()))?.as_ref(),
            _ => None,
        };
        let queue = self.queues.iter().find(|queue| queue.queue == task.queue);
        let around = TaskSurroundings { now: self.now, queue, workers: Some(&self.workers), lock, head };
        task.why(&around).into_iter().next()
    }
}

async fn executions(app: &App, view: &ExecutionsView) -> ApiResult<Content> {
    let workflows = app.leasehold.workflows()?;
    let query = ListExecutions::default()
        .workflow(view.workflow.clone())
        .state(view.state.map(super::view::TaskStateKey::get))
        .after(view.after.clone().map(Cursor))
        .limit(PAGE_SIZE);
    let mut page = list_executions(&workflows, query).await?;
    for execution in &mut page.items {
        // The list shows neither inputs nor results, which may be large.
        execution.input = ExecutionInput::of(&())?;
        execution.result = None;
    }
    let (executions, next) = (page.items, page.next.map(|next| next.0));
    Ok(Content::Executions { executions, next, workflows: workflows.list().await? })
}

async fn audit(app: &App, view: &AuditView) -> ApiResult<Content> {
    let locks = app.leasehold.locks();
    let (mut events, mut scanned) = (Vec::new(), 0);
    let mut span =
        view.before.clone().map_or(EventRange::Newest, |before| EventRange::Before(Cursor(before)));
    loop {
        let page = locks.history(&ListEvents::default().span(span).limit(PAGE_SIZE)).await?;
        scanned += PAGE_SIZE;
        let is_last = page.items.is_empty();
        events.extend(page.items.into_iter().filter(|event| view.matches(event)));
        let Some(next) = page.next.filter(|_| !is_last) else {
            return Ok(Content::Audit { events, next: None });
        };
        if events.len() >= PAGE_SIZE as usize || scanned >= MAX_SCANNED {
            return Ok(Content::Audit { events, next: Some(next.0) });
        }
        span = EventRange::Before(next);
    }
}

async fn health(app: &App) -> ApiResult<Content> {
    let began = BootInstant::now();
    app.leasehold.now().await?;
    let ping = BootInstant::now().after(began);
    let checks = app.leasehold.check_health().await?;
    let quota = app.metrics.read().await.0.rate_limit;
    Ok(Content::Health(HealthContent {
        engine: app.leasehold.capabilities().engine,
        ping_micros: u64::try_from(ping.as_micros()).unwrap_or(u64::MAX),
        checks,
        quota: quota.map(|quota| (quota.remaining, quota.limit, quota.renews_at)),
    }))
}
