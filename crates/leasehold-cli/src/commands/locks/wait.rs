//! `locks wait`: waits until a lock is free or held, without acquiring it.

use std::time::Duration;

use leasehold::{BootInstant, LockStatus};

use super::queries::is_held;
use crate::cli::{WaitArgs, WaitFor};
use crate::commands::dispatch::{CommandContext, CommandResult};
use crate::connect::Deadline;
use crate::exit;
use crate::output::{Failure, short};
use crate::run::WaitTimeout;

/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn wait(context: &CommandContext, args: &WaitArgs) -> CommandResult {
    let started = BootInstant::now();
    let deadline = args.timeout.map(|timeout| started.plus(timeout));
    let retry_deadline = Deadline::new(args.timeout.map_or(WaitTimeout::Forever, WaitTimeout::For));
    let leasehold = context.open_within(retry_deadline).await?;
    let mut failed = 0;
    loop {
        let status = match leasehold.status(&args.name).await {
            Ok(status) => status,
            Err(error) => {
                let Some(pause) = retry_deadline.retry_delay(&error, failed) else {
                    return Err(error.into());
                };
                if failed == 0 {
                    context.printer.message(format_args!("{error}; trying again"));
                }
                failed += 1;
                tokio::time::sleep(pause).await;
                continue;
            }
        };
        failed = 0;
        if is_held(&status) == (args.target == WaitFor::Held) {
            context.printer.success(&status, |_| format!("'{}' is {}\n", args.name, state(&status)))?;
            return Ok(exit::SUCCESS);
        }
        let left = deadline.map_or(POLL_INTERVAL, |deadline| deadline.after(BootInstant::now()));
        if left.is_zero() {
            let waited = short(BootInstant::now().after(started));
            let message = format!("lock '{}' is still {} (waited {waited})", args.name, state(&status));
            return Err(Failure::timeout(message).hint("give it longer with --timeout"));
        }
        tokio::time::sleep(POLL_INTERVAL.min(left)).await;
    }
}

fn state(status: &LockStatus) -> String {
    match (&status.holder, status.expires_at) {
        (Some(holder), Some(until)) if is_held(status) => format!("held by {holder} until {until}"),
        _ => "free".to_owned(),
    }
}
