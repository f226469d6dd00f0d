//! `fence check`: whether the lease with a token is alive.

use leasehold::Error;
use leasehold::model::StaleToken;
use serde_json::json;

use super::dispatch::{Desk, Done};
use crate::cli::FenceArgs;
use crate::exit;
use crate::output::Failure;

pub(super) async fn check(desk: &Desk, args: &FenceArgs) -> Done {
    let (name, token) = (&args.name, args.token);
    let checked = desk.open().await?.check_fence(name, token).await;
    let status = checked.map_err(|error| match &error {
        Error::StaleToken(stale) => Failure::from(error.clone()).in_words(in_words(args, stale)),
        _ => error.into(),
    })?;
    let held = status.holders.iter().find(|held| held.token == token);
    let value = json!({
        "valid": true,
        "lock": name,
        "token": token,
        "newest": status.token,
        "holder": held.map(|held| &held.holder),
        "expiresAt": held.map(|held| format!("{:#}", held.expires_at)),
    });
    desk.printer.result(&value, |_| match held {
        Some(held) => {
            format!("token {token} is good: {} holds '{name}' until {}\n", held.holder, held.expires_at)
        }
        None => format!("token {token} is good\n"),
    })?;
    Ok(exit::SUCCESS)
}

fn in_words(args: &FenceArgs, stale: &StaleToken) -> String {
    let (name, token, newest) = (&args.name, stale.token, stale.newest);
    match token.cmp(&newest) {
        std::cmp::Ordering::Less => {
            format!("token {token} of lock '{name}' is stale: {newest} is the newest")
        }
        std::cmp::Ordering::Equal => format!("token {token} of lock '{name}' is stale: its lease has ended"),
        std::cmp::Ordering::Greater => {
            format!("token {token} was never given for lock '{name}': {newest} is the newest")
        }
    }
}
