//! `locks list`, `locks status` and `locks why`.

use leasehold::client::HolderStatus;
use leasehold::model::{LockName, Status};
use leasehold::store::{ListEvents, ListLocks, LockState};
use leasehold::{Leasehold, LockStatus};

use crate::cli::{ListArgs, LockFilter, StatusArgs};
use crate::commands::context::{CommandContext, CommandResult};
use crate::exit;
use crate::identity::{LeaseRef, is_own_lease};
use crate::output::{ExplainContext, Explanation, Failure, lock_page, lock_table};

/// Maximum number of locks per query.
const PAGE: u32 = 500;

pub(super) async fn list(context: &CommandContext, args: &ListArgs) -> CommandResult {
    let limit = args.limit.map_or(usize::MAX, |limit| limit as usize);
    let mut found = find(&context.open().await?, args, limit).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    context
        .printer
        .result(&found, |style| if found.is_empty() { String::new() } else { lock_table(&found, style) })?;
    if found.is_empty() {
        context.printer.message(empty_message(args));
    }
    if more {
        context.printer.message("there are more; raise --limit to see them");
    }
    Ok(exit::SUCCESS)
}

fn empty_message(args: &ListArgs) -> &'static str {
    if args.all || args.stale || args.filter.is_some() || args.prefix.is_some() {
        "no such lock"
    } else {
        "no lock is held or waited for"
    }
}

/// Returns the requested locks; one more than `limit` if there are more.
async fn find(leasehold: &Leasehold, args: &ListArgs, limit: usize) -> Result<Vec<LockStatus>, Failure> {
    let filter = match args.filter {
        None if args.stale => Some(LockFilter::State(LockState::Stale)),
        filter => filter,
    };
    let query = |state| ListLocks::default().prefix(args.prefix.clone()).state(state).limit(PAGE);
    let any = |_: &LockStatus| true;
    match filter {
        None if args.all => collect_pages(leasehold, query(None), limit, any).await,
        None => collect_pages(leasehold, query(Some(LockState::InUse)), limit, any).await,
        Some(LockFilter::State(state)) => collect_pages(leasehold, query(Some(state)), limit, any).await,
        Some(LockFilter::Lease(status)) => {
            let has = |lock: &LockStatus| has_lease(lock, status);
            collect_pages(leasehold, query(Some(LockState::Held)), limit, has).await
        }
    }
}

fn has_lease(lock: &LockStatus, status: Status) -> bool {
    lock.holders.iter().any(|held| !held.stale && held.status == status)
}

/// Reads page after page, until more than `limit` locks are found.
async fn collect_pages(
    leasehold: &Leasehold,
    mut query: ListLocks,
    limit: usize,
    wanted: impl Fn(&LockStatus) -> bool,
) -> Result<Vec<LockStatus>, Failure> {
    let mut found = Vec::new();
    loop {
        let page = leasehold.locks().list(&query).await?;
        found.extend(page.items.into_iter().filter(&wanted));
        query.after = page.next;
        if query.after.is_none() || found.len() > limit {
            return Ok(found);
        }
    }
}

pub(super) async fn status(context: &CommandContext, args: &StatusArgs) -> CommandResult {
    let status = context.open().await?.locks().status(&args.name).await?;
    context.printer.result(&status, |style| lock_page(&status, style))?;
    Ok(if args.exit_code && is_held(&status) { exit::NOT_ACQUIRED } else { exit::SUCCESS })
}

pub(super) async fn why(context: &CommandContext, name: &LockName) -> CommandResult {
    let leasehold = context.open().await?;
    let status = leasehold.locks().status(name).await?;
    let newest = ListEvents::default().lock(name.clone()).limit(1);
    let events = leasehold.locks().history(&newest).await?.items;
    let is_own_lease = |held: &HolderStatus| {
        is_own_lease(LeaseRef { lock: name, holder: &held.holder, token: held.token }, None)
    };
    let explain =
        ExplainContext { program: context.program(), last: events.first(), is_own_lease: &is_own_lease };
    let explanation = Explanation::new(&status, &explain);
    context.printer.result(&explanation, |style| explanation.text(style))?;
    Ok(exit::SUCCESS)
}

/// Whether a live holder has the lock: a lease whose process is dead does not keep other holders
/// out.
pub(in crate::commands) fn is_held(status: &LockStatus) -> bool {
    status.holders.iter().any(|held| !held.stale)
}
