//! `schedules set`, `list`, `show`, `pause`, `resume`, `remove`.

use leasehold::client::ScheduleView;
use leasehold::model::{RetryPolicy, Schedule, Timestamp};
use serde::Serialize;

use super::context::{CommandContext, CommandResult};
use super::tasks::read_payload;
use crate::cli::{SchedulesCommand, SetArgs};
use crate::exit;
use crate::output::{schedule_page, schedule_table};

pub(super) async fn schedules(context: &CommandContext, command: SchedulesCommand) -> CommandResult {
    match command {
        SchedulesCommand::Set(args) => set(context, *args).await,
        SchedulesCommand::List => list(context).await,
        SchedulesCommand::Show { name, next } => {
            let leasehold = context.open().await?;
            let schedule = leasehold.schedules()?.get(&name).await?;
            show(context, &schedule, leasehold.now().await?, next as usize)
        }
        SchedulesCommand::Pause { name } => {
            let leasehold = context.open().await?;
            let schedule = leasehold.schedules()?.pause(&name).await?;
            changed(context, &schedule, leasehold.now().await?, 1)
        }
        SchedulesCommand::Resume { name } => {
            let leasehold = context.open().await?;
            let schedule = leasehold.schedules()?.resume(&name).await?;
            changed(context, &schedule, leasehold.now().await?, 1)
        }
        SchedulesCommand::Remove { name } => {
            context.open().await?.schedules()?.remove(&name).await?;
            let removed = Removed { name: name.as_str(), schedule: name.as_str() };
            context.printer.success(&removed, |_| format!("schedule '{name}' is removed\n"))?;
            Ok(exit::SUCCESS)
        }
    }
}

/// Removed schedule, as JSON.
#[derive(Serialize)]
struct Removed<'a> {
    name: &'a str,
    /// Same as `name`, under the key that older scripts may use.
    schedule: &'a str,
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
    let schedule = schedule.await?;
    changed(context, &schedule, leasehold.now().await?, 3)
}

async fn list(context: &CommandContext) -> CommandResult {
    let leasehold = context.open().await?;
    let (schedules, now) = (leasehold.schedules()?.list().await?, leasehold.now().await?);
    let views: Vec<_> = schedules.iter().map(|schedule| ScheduleView::new(schedule, now, 1)).collect();
    context.printer.result(&views, |style| {
        if schedules.is_empty() { String::new() } else { schedule_table(&schedules, now, style) }
    })?;
    if schedules.is_empty() {
        context.printer.message("there is no schedule");
    }
    Ok(exit::SUCCESS)
}

fn show(context: &CommandContext, schedule: &Schedule, now: Timestamp, next: usize) -> CommandResult {
    context
        .printer
        .result(&ScheduleView::new(schedule, now, next), |_| schedule_page(schedule, now, next))?;
    Ok(exit::SUCCESS)
}

/// Prints the schedule after a change.
fn changed(context: &CommandContext, schedule: &Schedule, now: Timestamp, next: usize) -> CommandResult {
    context
        .printer
        .success(&ScheduleView::new(schedule, now, next), |_| schedule_page(schedule, now, next))?;
    Ok(exit::SUCCESS)
}
