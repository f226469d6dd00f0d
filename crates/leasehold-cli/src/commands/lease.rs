//! `locks renew` and `locks release`: for a lease held without a guard, by its id and token.

use leasehold::LockStatus;

use super::dispatch::{Desk, Done};
use crate::cli::{ReleaseArgs, RenewArgs};
use crate::exit;
use crate::output::{Failure, LeaseView};

pub(super) async fn renew(desk: &Desk, args: &RenewArgs) -> Done {
    let leasehold = desk.open().await?;
    let status = leasehold.renew(&args.name, args.lease_id, args.token, args.ttl).await?;
    let held = status.holders.iter().find(|held| held.lease_id == args.lease_id);
    let Some(held) = held else {
        let wrong = format!("the lease on lock '{}' ended right after it was renewed", args.name);
        return Err(Failure::not_held(wrong));
    };
    let view = LeaseView::of_holder(&args.name, held);
    desk.printer.done(&view, |_| format!("renewed '{}' until {}\n", args.name, view.until))?;
    if let Some(asked) = &held.asked {
        let reason = asked.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        desk.printer.say(format_args!("{} asks you to stop{reason}", asked.by));
    }
    Ok(exit::SUCCESS)
}

pub(super) async fn release(desk: &Desk, args: &ReleaseArgs) -> Done {
    let (Some(lease_id), Some(token)) = (args.lease_id, args.token) else {
        return Err(Failure::usage("a release needs --lease-id and --token, or --force"));
    };
    let status = desk.open().await?.release(&args.name, lease_id, token).await?;
    desk.printer.done(&status, |_| format!("released '{}'{}\n", args.name, successor(&status)))?;
    Ok(exit::SUCCESS)
}

/// Returns text about the current holder, empty if there is none.
pub(super) fn successor(status: &LockStatus) -> String {
    match (&status.holder, status.holders.len()) {
        (Some(holder), 1) => format!("; {holder} has it now"),
        (Some(holder), others) => format!("; {holder} and {} more have it now", others - 1),
        (None, _) => String::new(),
    }
}
