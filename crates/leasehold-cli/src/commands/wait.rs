//! `locks wait`: until a lock is free or held, without taking it.

use std::time::Duration;

use leasehold::{LockStatus, Moment};

use super::dispatch::{Desk, Done};
use super::look::is_held;
use crate::cli::{Target, WaitArgs};
use crate::exit;
use crate::output::{Failure, short};

/// How often to look.
const LOOK: Duration = Duration::from_millis(100);

pub(super) async fn wait(desk: &Desk, args: &WaitArgs) -> Done {
    let leasehold = desk.open().await?;
    let started = Moment::now();
    let deadline = args.timeout.map(|timeout| started.plus(timeout));
    loop {
        let status = leasehold.status(&args.name).await?;
        if is_held(&status) == (args.target == Target::Held) {
            desk.printer.result(&status, |_| format!("'{}' is {}\n", args.name, state(&status)))?;
            return Ok(exit::SUCCESS);
        }
        let left = deadline.map_or(LOOK, |deadline| deadline.after(Moment::now()));
        if left.is_zero() {
            let waited = short(Moment::now().after(started));
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
