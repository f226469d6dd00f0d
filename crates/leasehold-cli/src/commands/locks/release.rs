//! `locks renew`, `locks release`, `locks release --force` and `locks ask`.

use std::io::{self, IsTerminal, Write};

use leasehold::client::HolderStatus;
use leasehold::model::{Token, lock_command};
use leasehold::{Error, LockStatus};
use serde_json::json;

use crate::cli::{AskStopArgs, ReleaseArgs, RenewArgs};
use crate::commands::context::{CommandContext, CommandResult};
use crate::exit;
use crate::identity::Identity;
use crate::output::{Failure, LeaseView, Style, count, lock_page, short};

pub(in crate::commands) async fn force_release(
    context: &CommandContext,
    args: &ReleaseArgs,
) -> CommandResult {
    let Some(reason) = args.reason.clone() else {
        return Err(Failure::usage("a force-release needs a --reason"));
    };
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !can_ask {
        let message = "a force-release without a terminal to ask on needs --yes";
        let why = format!("{} locks why", context.program());
        let why = lock_command(&why, args.name.as_str(), "");
        return Err(Failure::usage(message).hint(format!("see who holds it first: {why}")));
    }
    let leasehold = context.open().await?;
    let status = leasehold.locks().status(&args.name).await?;
    let held = select_holder(&status, args.token)?;
    if !args.yes {
        confirm(&status)?;
    }
    let by = Identity::current().operator()?;
    let after = leasehold.locks().force_release(&args.name, held.token, by, reason).await?;
    context.printer.success(&after, |_| {
        let (name, holder, next) = (&args.name, &held.holder, next_holder(&after));
        format!("took '{name}' from {holder}{next}\n")
    })?;
    let token = held.token;
    context.printer.message(format_args!(
        "the holder may still be working: token {token} is stale from now on for every resource that checks tokens"
    ));
    Ok(exit::SUCCESS)
}

/// Returns the holder to take the lock from: the one with that token, or the only one.
fn select_holder(status: &LockStatus, token: Option<Token>) -> Result<&HolderStatus, Failure> {
    let name = &status.name;
    let live: Vec<_> = status.holders.iter().filter(|held| status.now < held.expires_at).collect();
    match (live.as_slice(), token) {
        ([], _) => Err(Failure::not_held(format!("lock '{name}' is not held"))),
        (live, Some(token)) => live.iter().find(|held| held.token == token).copied().ok_or_else(|| {
            let message = format!("lock '{name}' is no longer held with token {token}");
            holder_hints(status, live).fold(Failure::not_held(message), Failure::hint)
        }),
        ([one], None) => Ok(one),
        (live, None) => {
            let message = format!("lock '{name}' has {} holders; select one with --token", live.len());
            Err(holder_hints(status, live).fold(Failure::usage(message), Failure::hint))
        }
    }
}

fn holder_hints(status: &LockStatus, live: &[&HolderStatus]) -> impl Iterator<Item = String> {
    live.iter().map(|held| {
        let since = short(status.now.since(held.acquired_at));
        format!("--token {} is {}, for {since}", held.token, held.holder)
    })
}

/// Shows the lock and asks the operator to type its name.
fn confirm(status: &LockStatus) -> Result<(), Failure> {
    let (mut stderr, name) = (io::stderr(), &status.name);
    let page = lock_page(status, Style::of(&stderr));
    let question = "The holder may still be working. To take the lock, type the lock's name: ";
    write!(stderr, "{page}{question}").and_then(|()| stderr.flush()).map_err(Failure::output)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(Failure::internal)?;
    if answer.trim() == name.as_str() {
        Ok(())
    } else {
        Err(Failure::declined("the name does not match; nothing was changed"))
    }
}

pub(in crate::commands) async fn renew(context: &CommandContext, args: &RenewArgs) -> CommandResult {
    let locks = context.open().await?.locks();
    let lease = locks.renew(&args.name, args.lease_id, args.token, args.ttl).await?;
    // The lease has been renewed, also if the status of the lock cannot be read any more.
    let status = locks.status(&args.name).await.ok();
    let is_ours = |held: &&HolderStatus| held.lease_id == args.lease_id;
    let held = status.as_ref().map(|status| status.holders.iter().find(is_ours));
    let (view, requested) = match held {
        Some(Some(held)) => (LeaseView::of_holder(&args.name, held), held.release_request.as_ref()),
        Some(None) => {
            let message = format!("the lease on lock '{}' ended right after it was renewed", args.name);
            return Err(Failure::not_held(message));
        }
        None => (LeaseView::of_lease(&args.name, &lease), None),
    };
    context.printer.success(&view, |_| format!("renewed '{}' until {}\n", args.name, view.until))?;
    if let Some(request) = requested {
        let reason = request.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        context.printer.message(format_args!("{} asks you to stop{reason}", request.by));
    }
    Ok(exit::SUCCESS)
}

pub(in crate::commands) async fn release(context: &CommandContext, args: &ReleaseArgs) -> CommandResult {
    let (Some(lease_id), Some(token)) = (args.lease_id, args.token) else {
        return Err(Failure::usage("a release needs --lease-id and --token, or --force"));
    };
    let locks = context.open().await?.locks();
    let name = &args.name;
    locks.release(name, lease_id, token).await?;
    // The lock has been released, also if its status cannot be read any more.
    match locks.status(name).await {
        Ok(status) => {
            context.printer.success(&status, |_| format!("released '{name}'{}\n", next_holder(&status)))
        }
        Err(_) => {
            let released = json!({ "name": name, "lock": name });
            context.printer.success(&released, |_| format!("released '{name}'\n"))
        }
    }
}

/// Returns text about the current holder, empty if there is none.
pub(super) fn next_holder(status: &LockStatus) -> String {
    match (&status.holder, status.holders.len()) {
        (Some(holder), 1) => format!("; {holder} has it now"),
        (Some(holder), others) => format!("; {holder} and {} more have it now", others - 1),
        (None, _) => String::new(),
    }
}

pub(in crate::commands) async fn ask(context: &CommandContext, args: &AskStopArgs) -> CommandResult {
    let (name, by) = (&args.name, Identity::current().operator()?);
    let leasehold = context.open().await?;
    let requested = leasehold.locks().request_release(name, by.clone(), args.reason.clone()).await;
    let requested = requested.map_err(|error| match error {
        Error::NotHeld { .. } => Failure::not_held(format!("lock '{name}' is not held")),
        error => error.into(),
    })?;
    let value = json!({ "name": name, "lock": name, "holders": requested, "by": by, "reason": args.reason });
    context.printer.success(&value, |_| {
        let holders = count(requested.into(), "holder");
        format!("asked {holders} of '{name}' to stop\n")
    })?;
    context.printer.message(
        "each holder is notified now, or at its next renewal at the latest, and may then release the lock",
    );
    Ok(exit::SUCCESS)
}
