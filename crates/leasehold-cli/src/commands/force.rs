//! `locks release --force`: takes a lock from its holder, after showing the holder to the operator.

use std::io::{self, IsTerminal, Write};

use leasehold::LockStatus;
use leasehold::client::HolderStatus;
use leasehold::model::Token;

use super::dispatch::{Desk, Done};
use super::lease::successor;
use crate::cli::ReleaseArgs;
use crate::exit;
use crate::identity::Identity;
use crate::output::{Failure, Paint, lock_page, shell_word, short};

pub(super) async fn force_release(desk: &Desk, args: &ReleaseArgs) -> Done {
    let Some(reason) = args.reason.clone() else {
        return Err(Failure::usage("a force-release needs a --reason"));
    };
    let may_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !may_ask {
        let wrong = "a force-release without a terminal to ask on needs --yes";
        let name = shell_word(args.name.as_str());
        return Err(Failure::usage(wrong)
            .hint(format!("see who holds it first: {} locks why {name}", desk.program())));
    }
    let leasehold = desk.open().await?;
    let status = leasehold.status(&args.name).await?;
    let held = victim(&status, args.token)?;
    if !args.yes {
        confirm(&status)?;
    }
    let by = Identity::here().person()?;
    let after = leasehold.force_release(&args.name, held.token, by, reason).await?;
    desk.printer.done(&after, |_| {
        let (name, holder, next) = (&args.name, &held.holder, successor(&after));
        format!("took '{name}' from {holder}{next}\n")
    })?;
    let token = held.token;
    desk.printer.say(format_args!(
        "its holder may still be at work: token {token} is old from now on, for every resource that checks tokens"
    ));
    Ok(exit::SUCCESS)
}

/// Returns the holder to take the lock from: the one with that token, or the only one.
fn victim(status: &LockStatus, token: Option<Token>) -> Result<&HolderStatus, Failure> {
    let name = &status.name;
    let live: Vec<_> = status.holders.iter().filter(|held| status.now < held.expires_at).collect();
    match (live.as_slice(), token) {
        ([], _) => Err(Failure::not_held(format!("nobody holds lock '{name}': there is nothing to take"))),
        (live, Some(token)) => live.iter().find(|held| held.token == token).copied().ok_or_else(|| {
            let wrong = format!("lock '{name}' is not held with token {token} any more");
            listed(status, live).fold(Failure::not_held(wrong), Failure::hint)
        }),
        ([one], None) => Ok(one),
        (live, None) => {
            let wrong = format!("lock '{name}' has {} holders; say which with --token", live.len());
            Err(listed(status, live).fold(Failure::usage(wrong), Failure::hint))
        }
    }
}

/// Returns one line for each holder.
fn listed(status: &LockStatus, live: &[&HolderStatus]) -> impl Iterator<Item = String> {
    live.iter().map(|held| {
        let since = short(status.now.since(held.acquired_at));
        format!("--token {} is {}, for {since}", held.token, held.holder)
    })
}

/// Shows the lock and asks the operator to type its name.
fn confirm(status: &LockStatus) -> Result<(), Failure> {
    let (mut stderr, name) = (io::stderr(), &status.name);
    let page = lock_page(status, Paint::of(&stderr));
    let question = "Its holder may still be at work. To take the lock from it, type the lock's name: ";
    write!(stderr, "{page}{question}").and_then(|()| stderr.flush()).map_err(Failure::output)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(Failure::internal)?;
    if answer.trim() == name.as_str() {
        Ok(())
    } else {
        Err(Failure::declined("that is not its name; nothing was changed"))
    }
}
