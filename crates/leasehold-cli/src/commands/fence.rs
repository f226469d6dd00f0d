//! `fence check`: checks whether the lease with a token is alive.

use std::cmp::Ordering;

use leasehold::client::EventView;
use leasehold::model::{EventKind, StaleToken};
use leasehold::store::ListEvents;
use leasehold::{Error, Leasehold};
use serde_json::json;

use super::context::{CommandContext, CommandResult};
use super::locks::queries::is_held;
use crate::cli::FenceArgs;
use crate::output::Failure;

/// Maximum number of events of the lock that are searched for the end of the lease.
const MAX_EVENTS: u32 = 100;

pub(super) async fn check(context: &CommandContext, args: &FenceArgs) -> CommandResult {
    let (name, token) = (&args.name, args.token);
    let leasehold = context.open().await?;
    let status = match leasehold.locks().check_fence(name, token).await {
        Ok(status) => status,
        Err(Error::StaleToken(stale)) => return Err(stale_failure(&leasehold, args, stale).await),
        Err(error) => return Err(error.into()),
    };
    let held = status.holders.iter().find(|held| held.token == token);
    let value = json!({
        "valid": true,
        "name": name,
        "lock": name,
        "token": token,
        "newest": status.token,
        "holder": held.map(|held| &held.holder),
        "expiresAt": held.map(|held| format!("{:#}", held.expires_at)),
    });
    context.printer.success(&value, |_| match held {
        Some(held) => {
            format!("token {token} is valid: {} holds '{name}' until {}\n", held.holder, held.expires_at)
        }
        None => format!("token {token} is valid\n"),
    })
}

/// Returns why the token is invalid, and what its bearer should do.
async fn stale_failure(leasehold: &Leasehold, args: &FenceArgs, stale: StaleToken) -> Failure {
    let (name, token, newest) = (&args.name, stale.token, stale.newest);
    // The history only adds detail; if it cannot be read, the refusal is as good without it.
    let query = ListEvents::default().lock(name.clone()).limit(MAX_EVENTS);
    let events = leasehold.locks().history(&query).await.map(|page| page.items).unwrap_or_default();
    let message = match events
        .iter()
        .find_map(|event| (event.token == token).then(|| describe_end(event)).flatten())
    {
        Some(ending) => format!("token {token} of lock '{name}' is stale: {ending}"),
        // A lock without a token may have been forgotten, which happens only after its lease has ended.
        None if token > newest && newest.get() == 0 => {
            format!("token {token} of lock '{name}' is stale: its lease has ended, or it was never granted")
        }
        None => match token.cmp(&newest) {
            Ordering::Less => format!("token {token} of lock '{name}' is stale: {newest} is the newest"),
            Ordering::Equal => format!("token {token} of lock '{name}' is stale: its lease has ended"),
            Ordering::Greater => {
                format!("token {token} was never granted for lock '{name}': {newest} is the newest")
            }
        },
    };
    let hint = match leasehold.locks().status(name).await {
        _ if token > newest && newest.get() > 0 => {
            "check where the token and the lock name come from, and which store is used".to_owned()
        }
        _ if token > newest => {
            "stop; if the token is new, check where it and the lock name come from, and which store is used"
                .to_owned()
        }
        Ok(status) if is_held(&status) => {
            let holder =
                status.holder.map_or_else(|| "another holder".to_owned(), |holder| holder.to_string());
            format!("stop: {holder} holds the lock now")
        }
        _ => "stop: another holder may be granted the lock at any time".to_owned(),
    };
    Failure::from(Error::StaleToken(stale)).with_message(message).without_hints().hint(hint)
}

/// Returns how the lease ended, if this event is its end.
fn describe_end(event: &EventView) -> Option<String> {
    let by = event.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let reason = event.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    match event.kind {
        EventKind::Forced => Some(format!("its lease was taken by force{by} at {}{reason}", event.at)),
        EventKind::Stolen => Some(format!("its lease was taken over as stale{by} at {}", event.at)),
        EventKind::Expired => Some(format!("its lease expired at {}", event.at)),
        EventKind::Released => Some(format!("its lease was released at {}", event.at)),
        _ => None,
    }
}
