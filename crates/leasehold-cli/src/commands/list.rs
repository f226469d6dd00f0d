//! `locks list`.

use leasehold::model::Status;
use leasehold::store::{ListLocks, LockState};
use leasehold::{Leasehold, LockStatus};

use super::dispatch::{Desk, Done};
use crate::cli::{Filter, ListArgs};
use crate::exit;
use crate::output::{Failure, lock_table};

/// Maximum number of locks per query.
const PAGE: u32 = 500;

pub(super) async fn list(desk: &Desk, args: &ListArgs) -> Done {
    let most = args.limit.map_or(usize::MAX, |limit| limit as usize);
    let mut found = find(&desk.open().await?, args, most).await?;
    let more = found.len() > most;
    found.truncate(most);
    desk.printer.result(
        &found,
        |paint| {
            if found.is_empty() { String::new() } else { lock_table(&found, paint) }
        },
    )?;
    if found.is_empty() {
        desk.printer.say(nothing(args));
    }
    if more {
        desk.printer.say("there are more; raise --limit to see them");
    }
    Ok(exit::SUCCESS)
}

fn nothing(args: &ListArgs) -> &'static str {
    if args.all || args.stale || args.filter.is_some() || args.prefix.is_some() {
        "no such lock"
    } else {
        "no lock is held or waited for"
    }
}

/// Returns the requested locks; one more than `most` if there are more.
async fn find(leasehold: &Leasehold, args: &ListArgs, most: usize) -> Result<Vec<LockStatus>, Failure> {
    let filter = match args.filter {
        None if args.stale => Some(Filter::State(LockState::Stale)),
        filter => filter,
    };
    let ask = |state| ListLocks { prefix: args.prefix.clone(), state, limit: PAGE, ..ListLocks::default() };
    let any = |_: &LockStatus| true;
    match filter {
        None if args.all => collect(leasehold, ask(None), most, any).await,
        None => collect(leasehold, ask(Some(LockState::InUse)), most, any).await,
        Some(Filter::State(state)) => collect(leasehold, ask(Some(state)), most, any).await,
        Some(Filter::Lease(status)) => {
            let has = |lock: &LockStatus| has_lease(lock, status);
            collect(leasehold, ask(Some(LockState::Held)), most, has).await
        }
    }
}

fn has_lease(lock: &LockStatus, status: Status) -> bool {
    lock.holders.iter().any(|held| !held.stale && held.status == status)
}

/// Reads page after page, until more than `most` locks are found.
async fn collect(
    leasehold: &Leasehold,
    mut ask: ListLocks,
    most: usize,
    wanted: impl Fn(&LockStatus) -> bool,
) -> Result<Vec<LockStatus>, Failure> {
    let mut found = Vec::new();
    loop {
        let page = leasehold.list(&ask).await?;
        found.extend(page.items.into_iter().filter(&wanted));
        ask.after = page.next;
        if ask.after.is_none() || found.len() > most {
            return Ok(found);
        }
    }
}
