//! `locks wait`: waits until a lock is free or held, without acquiring it.

use std::time::Duration;

use leasehold::{BootInstant, LockStatus};

use super::dispatch::{Desk, Done};
use super::look::is_held;
use crate::cli::{Target, WaitArgs};
use crate::connect::Deadline;
use crate::exit;
use crate::output::{Failure, short};
use crate::run::Patience;

/// Poll interval.
const LOOK: Duration = Duration::from_millis(100);

pub(super) async fn wait(desk: &Desk, args: &WaitArgs) -> Done {
    let started = BootInstant::now();
    let deadline = args.timeout.map(|timeout| started.plus(timeout));
    let patience = Deadline::new(args.timeout.map_or(Patience::Forever, Patience::For));
    let leasehold = desk.open_within(patience).await?;
    let mut failed = 0;
    loop {
        let status = match leasehold.status(&args.name).await {
            Ok(status) => status,
            Err(error) => {
                let Some(pause) = patience.pause(&error, failed) else { return Err(error.into()) };
                if failed == 0 {
                    desk.printer.say(format_args!("{error}; trying again"));
                }
                failed += 1;
                tokio::time::sleep(pause).await;
                continue;
            }
        };
        failed = 0;
        if is_held(&status) == (args.target == Target::Held) {
            desk.printer.done(&status, |_| format!("'{}' is {}\n", args.name, state(&status)))?;
            return Ok(exit::SUCCESS);
        }
        let left = deadline.map_or(LOOK, |deadline| deadline.after(BootInstant::now()));
        if left.is_zero() {
            let waited = short(BootInstant::now().after(started));
            let wrong = format!("lock '{}' is still {} (waited {waited})", args.name, state(&status));
            return Err(Failure::timeout(wrong).hint("give it longer with --timeout"));
        }
        tokio::time::sleep(LOOK.min(left)).await;
    }
}

fn state(status: &LockStatus) -> String {
    match (&status.holder, status.expires_at) {
        (Some(holder), Some(until)) if is_held(status) => format!("held by {holder} until {until}"),
        _ => "free".to_owned(),
    }
}
