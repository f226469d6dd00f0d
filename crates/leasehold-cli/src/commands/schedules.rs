//! `schedules set`, `list`, `show`, `pause`, `resume`, `remove`.

use leasehold::client::ScheduleView;
use leasehold::model::{RetryPolicy, Schedule, Timestamp};
use serde::Serialize;

use super::dispatch::{Desk, Done};
use super::tasks::read_payload;
use crate::cli::{SchedulesCommand, SetArgs};
use crate::exit;
use crate::output::{schedule_page, schedule_table};

pub(super) async fn schedules(desk: &Desk, command: SchedulesCommand) -> Done {
    match command {
        SchedulesCommand::Set(args) => set(desk, *args).await,
        SchedulesCommand::List => list(desk).await,
        SchedulesCommand::Show { name, next } => {
            let leasehold = desk.open().await?;
            let schedule = leasehold.schedules()?.get(&name).await?;
            show(desk, &schedule, leasehold.now().await?, next as usize)
        }
        SchedulesCommand::Pause { name } => {
            let leasehold = desk.open().await?;
            let schedule = leasehold.schedules()?.pause(&name).await?;
            changed(desk, &schedule, leasehold.now().await?, 1)
        }
        SchedulesCommand::Resume { name } => {
            let leasehold = desk.open().await?;
            let schedule = leasehold.schedules()?.resume(&name).await?;
            changed(desk, &schedule, leasehold.now().await?, 1)
        }
        SchedulesCommand::Remove { name } => {
            desk.open().await?.schedules()?.remove(&name).await?;
            let gone = Removed { name: name.as_str(), schedule: name.as_str() };
            desk.printer.done(&gone, |_| format!("schedule '{name}' is removed\n"))?;
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

async fn set(desk: &Desk, args: SetArgs) -> Done {
    let SetArgs { name, cron, queue, zone, payload, missed, jitter, priority, lock, steps } = args;
    let payload = read_payload(payload)?;
    let leasehold = desk.open().await?;
    let mut schedule = leasehold
        .schedule_to(name.as_str(), cron.as_str(), &queue, payload)
        .zone(zone.as_str())
        .missed(missed)
        .retries(steps.over(RetryPolicy::default()));
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
    changed(desk, &schedule, leasehold.now().await?, 3)
}

async fn list(desk: &Desk) -> Done {
    let leasehold = desk.open().await?;
    let (schedules, now) = (leasehold.schedules()?.list().await?, leasehold.now().await?);
    let views: Vec<_> = schedules.iter().map(|schedule| ScheduleView::new(schedule, now, 1)).collect();
    desk.printer.result(&views, |paint| {
        if schedules.is_empty() { String::new() } else { schedule_table(&schedules, now, paint) }
    })?;
    if schedules.is_empty() {
        desk.printer.say("there is no schedule");
    }
    Ok(exit::SUCCESS)
}

fn show(desk: &Desk, schedule: &Schedule, now: Timestamp, next: usize) -> Done {
    desk.printer.result(&ScheduleView::new(schedule, now, next), |_| schedule_page(schedule, now, next))?;
    Ok(exit::SUCCESS)
}

/// Prints the schedule after a change.
fn changed(desk: &Desk, schedule: &Schedule, now: Timestamp, next: usize) -> Done {
    desk.printer.done(&ScheduleView::new(schedule, now, next), |_| schedule_page(schedule, now, next))?;
    Ok(exit::SUCCESS)
}
