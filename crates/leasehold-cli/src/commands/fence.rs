//! `fence check`: whether the lease with a token is alive.

use std::cmp::Ordering;

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
        Error::StaleToken(stale) => {
            let (words, hint) = in_words(args, stale);
            Failure::from(error.clone()).in_words(words).without_hints().hint(hint)
        }
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

/// What is wrong with the token, and what its bearer should do.
fn in_words(args: &FenceArgs, stale: &StaleToken) -> (String, &'static str) {
    let (name, token, newest) = (&args.name, stale.token, stale.newest);
    match token.cmp(&newest) {
        Ordering::Less => (
            format!("token {token} of lock '{name}' is stale: {newest} is the newest"),
            "stop: somebody else has been granted this since",
        ),
        // A lock without a token may be one that was forgotten, which happens only after its lease has ended.
        Ordering::Greater if newest.get() == 0 => (
            format!("token {token} of lock '{name}' is stale: its lease has ended, or it was never given"),
            "stop; if the token is new, look at where it and the name come from, and at which store",
        ),
        Ordering::Equal => (
            format!("token {token} of lock '{name}' is stale: its lease has ended"),
            "stop: somebody else may be granted this at any time",
        ),
        Ordering::Greater => (
            format!("token {token} was never given for lock '{name}': {newest} is the newest"),
            "look at where the token and the name come from, and at which store",
        ),
    }
}
