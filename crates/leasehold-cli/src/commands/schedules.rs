//! `schedules set`, `list`, `show`, `pause`, `resume`, `remove`.

use leasehold::client::ScheduleView;
use leasehold::model::{RetryPolicy, Schedule, Timestamp};
use serde_json::json;

use super::context::{CommandContext, CommandResult};
use super::tasks::add::read as read_payload;
use crate::cli::{SchedulesCommand, SetArgs};
use crate::output::{List, schedule_page, schedule_table};

pub(super) async fn schedules(context: &CommandContext, command: SchedulesCommand) -> CommandResult {
    match command {
        SchedulesCommand::Set(args) => set(context, *args).await,
        SchedulesCommand::List { .. } => list(context).await,
        SchedulesCommand::Show { name, next } => {
            let leasehold = context.open().await?;
            let schedule = leasehold.schedules()?.get(&name).await?;
            let (now, next) = (leasehold.now().await?, next as usize);
            let view = ScheduleView::new(&schedule, now, next);
            context.printer.result(&view, |_| schedule_page(&schedule, now, next))
        }
        SchedulesCommand::Run { name } => {
            let leasehold = context.open_persistent("a task").await?;
            let schedule = leasehold.schedules()?.get(&name).await?;
            let (queue, priority) = (schedule.queue, schedule.priority.get());
            let mut task = leasehold.enqueue_to(queue.clone(), schedule.payload);
            task = task.retries(schedule.retries).priority(priority);
            if let Some(lock) = schedule.lock {
                task = task.lock(lock);
            }
            if let Some(timeout) = schedule.timeout {
                task = task.timeout(timeout.as_duration());
            }
            let id = task.await?.id;
            let added = json!({ "id": id, "queue": queue.as_str(), "schedule": name.as_str() });
            context.printer.unrepeatable(&added, |_| format!("{id}\n"))
        }
        SchedulesCommand::Pause { name } => {
            let leasehold = context.open().await?;
            let now = leasehold.now().await?;
            changed(context, &leasehold.schedules()?.pause(&name).await?, now, 1)
        }
        SchedulesCommand::Resume { name } => {
            let leasehold = context.open().await?;
            let now = leasehold.now().await?;
            changed(context, &leasehold.schedules()?.resume(&name).await?, now, 1)
        }
        SchedulesCommand::Remove { name } => {
            context.open().await?.schedules()?.remove(&name).await?;
            let removed = json!({ "name": name.as_str() });
            context.printer.success(&removed, |_| format!("schedule '{name}' is removed\n"))
        }
    }
}

async fn set(context: &CommandContext, args: SetArgs) -> CommandResult {
    let SetArgs { name, cron, queue, zone, payload, missed, jitter, priority, lock, timeout, retry } = args;
    let payload = read_payload(payload)?;
    let leasehold = context.open().await?;
    let mut schedule = leasehold
        .schedule_to(name.as_str(), cron.as_str(), &queue, payload)
        .zone(zone.as_str())
        .missed(missed)
        .retries(retry.apply_to(RetryPolicy::default()));
    if let Some(jitter) = jitter {
        schedule = schedule.jitter(jitter.as_duration());
    }
    if let Some(priority) = priority {
        schedule = schedule.priority(priority.get());
    }
    if let Some(lock) = &lock {
        schedule = schedule.lock(lock);
    }
    if let Some(timeout) = timeout {
        schedule = schedule.timeout(timeout.as_duration());
    }
    let now = leasehold.now().await?;
    changed(context, &schedule.await?, now, 3)
}

async fn list(context: &CommandContext) -> CommandResult {
    let leasehold = context.open().await?;
    let schedules = leasehold.schedules()?;
    context
        .print_list(&leasehold, async |printer| {
            let (all, now) = (schedules.list().await?, leasehold.now().await?);
            let views: Vec<_> = all.iter().map(|schedule| ScheduleView::new(schedule, now, 1)).collect();
            printer.list(List {
                values: &views,
                name: |view: &ScheduleView| view.name.clone(),
                empty: "there is no schedule",
                more: None,
                table: |style| schedule_table(&all, now, style),
            })
        })
        .await
}

/// Prints the schedule after a change. The time of the store was read before it: a change that was made must not
/// fail afterwards.
fn changed(context: &CommandContext, schedule: &Schedule, now: Timestamp, next: usize) -> CommandResult {
    context.printer.success(&ScheduleView::new(schedule, now, next), |_| schedule_page(schedule, now, next))
}
