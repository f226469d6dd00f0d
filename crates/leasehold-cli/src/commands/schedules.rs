//! `schedules set`, `list`, `show`, `pause`, `resume`, `remove`.

use leasehold::Leasehold;
use leasehold::client::ScheduleView;
use leasehold::model::{RetryPolicy, Schedule};
use serde_json::json;

use super::context::{CommandContext, CommandResult};
use super::tasks::add::read as read_payload;
use crate::cli::{SchedulesCommand, SetArgs};
use crate::output::{schedule_page, schedule_table};

pub(super) async fn schedules(context: &CommandContext, command: SchedulesCommand) -> CommandResult {
    match command {
        SchedulesCommand::Set(args) => set(context, *args).await,
        SchedulesCommand::List => list(context).await,
        SchedulesCommand::Show { name, next } => {
            let leasehold = context.open().await?;
            let schedule = leasehold.schedules()?.get(&name).await?;
            let (now, next) = (leasehold.now().await?, next as usize);
            let view = ScheduleView::new(&schedule, now, next);
            context.printer.result(&view, |_| schedule_page(&schedule, now, next))
        }
        SchedulesCommand::Pause { name } => {
            let leasehold = context.open().await?;
            let schedule = leasehold.schedules()?.pause(&name).await?;
            changed(context, &leasehold, &schedule, 1).await
        }
        SchedulesCommand::Resume { name } => {
            let leasehold = context.open().await?;
            let schedule = leasehold.schedules()?.resume(&name).await?;
            changed(context, &leasehold, &schedule, 1).await
        }
        SchedulesCommand::Remove { name } => {
            context.open().await?.schedules()?.remove(&name).await?;
            let removed = json!({ "name": name.as_str() });
            context.printer.success(&removed, |_| format!("schedule '{name}' is removed\n"))
        }
    }
}

async fn set(context: &CommandContext, args: SetArgs) -> CommandResult {
    let SetArgs { name, cron, queue, zone, payload, missed, jitter, priority, lock, retry } = args;
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
    changed(context, &leasehold, &schedule.await?, 3).await
}

async fn list(context: &CommandContext) -> CommandResult {
    let leasehold = context.open().await?;
    let (schedules, now) = (leasehold.schedules()?.list().await?, leasehold.now().await?);
    let views: Vec<_> = schedules.iter().map(|schedule| ScheduleView::new(schedule, now, 1)).collect();
    context.printer.list(&views, "there is no schedule", |style| schedule_table(&schedules, now, style))
}

/// Prints the schedule after a change.
async fn changed(
    context: &CommandContext,
    leasehold: &Leasehold,
    schedule: &Schedule,
    next: usize,
) -> CommandResult {
    let now = leasehold.now().await?;
    context.printer.success(&ScheduleView::new(schedule, now, next), |_| schedule_page(schedule, now, next))
}
