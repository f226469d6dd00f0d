//! `locks list`, `locks status`, `locks why` and `locks deadlocks`.

use leasehold::client::{DeadlocksView, LockExplanationView};
use leasehold::model::{LeaseStatus, LockName, LockReason};
use leasehold::store::{ListLocks, LockState};
use leasehold::{Error, Leasehold, LockStatus};

use crate::cli::{ListArgs, LockFilter, StatusArgs};
use crate::commands::context::{CommandContext, CommandResult, collect_pages, with_code};
use crate::exit;
use crate::identity::is_own_lease;
use crate::output::{List, deadlock_page, explanation_page, lock_page, lock_table};

const PAGE: u32 = 500;

pub(in crate::commands) async fn list(context: &CommandContext, args: &ListArgs) -> CommandResult {
    let limit = args.limit.map_or(usize::MAX, |limit| limit as usize);
    let leasehold = context.open().await?;
    context
        .print_list(&leasehold, async |printer| {
            let mut found = find(&leasehold, args, limit).await?;
            let more = found.len() > limit;
            found.truncate(limit);
            printer.list(List {
                values: &found,
                name: |lock: &LockStatus| lock.name.to_string(),
                empty: empty_message(args),
                more: more.then_some("there are more; raise --limit to see them"),
                table: |style| lock_table(&found, style),
            })
        })
        .await
}

fn empty_message(args: &ListArgs) -> &'static str {
    if args.all || args.stale || args.filter.is_some() || args.prefix.is_some() {
        "no such lock"
    } else {
        "no lock is held or waited for"
    }
}

/// Returns the requested locks; one more than `limit` if there are more.
async fn find(leasehold: &Leasehold, args: &ListArgs, limit: usize) -> Result<Vec<LockStatus>, Error> {
    let filter = match args.filter {
        None if args.stale => Some(LockFilter::State(LockState::Stale)),
        filter => filter,
    };
    let (state, status) = match filter {
        None if args.all => (None, None),
        None => (Some(LockState::InUse), None),
        Some(LockFilter::State(state)) => (Some(state), None),
        Some(LockFilter::Lease(status)) => (Some(LockState::Held), Some(status)),
    };
    let mut query = ListLocks::default().prefix(args.prefix.clone()).state(state).limit(PAGE);
    collect_pages(limit, async |after| {
        query.after = after;
        let mut page = leasehold.locks().list(&query).await?;
        page.items.retain(|lock| status.is_none_or(|status| has_lease(lock, status)));
        Ok(page)
    })
    .await
}

fn has_lease(lock: &LockStatus, status: LeaseStatus) -> bool {
    lock.holders.iter().any(|held| !held.stale && held.status == status)
}

pub(in crate::commands) async fn status(context: &CommandContext, args: &StatusArgs) -> CommandResult {
    let status = context.open().await?.locks().status(&args.name).await?;
    let written = context.printer.result(&status, |style| lock_page(&status, style));
    let code = if args.exit_code && is_held(&status) { exit::NOT_ACQUIRED } else { exit::SUCCESS };
    with_code(written, code)
}

pub(in crate::commands) async fn why(context: &CommandContext, name: &LockName) -> CommandResult {
    let leasehold = context.open().await?;
    let mut explanation = leasehold.locks().why(name).await?;
    for reason in &mut explanation.reasons {
        if let LockReason::Held { holder, token, own, .. } = reason {
            *own = is_own_lease(name, holder, *token, None);
        }
    }
    let view = LockExplanationView::new(&explanation, &context.program());
    context.printer.result(&view, |style| explanation_page(&explanation, &view, style))
}

pub(in crate::commands) async fn deadlocks(context: &CommandContext) -> CommandResult {
    let search = context.open().await?.locks().deadlocks().await?;
    let view = DeadlocksView::new(&search, &context.program());
    let written = context.printer.result(&view, |style| deadlock_page(&search, &view, style));
    if !search.complete {
        context
            .printer
            .message("leasehold: only the first locks with waiters were examined: there are too many");
    }
    with_code(written, if search.found.is_empty() { exit::SUCCESS } else { exit::DEADLOCK })
}

/// Whether a live holder has the lock: a lease whose process is dead does not keep other holders out.
pub(in crate::commands) fn is_held(status: &LockStatus) -> bool {
    status.holders.iter().any(|held| !held.stale)
}
