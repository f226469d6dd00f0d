//! `locks ask`: asks the holders to stop when they can.

use leasehold::Error;
use serde_json::json;

use super::dispatch::{Desk, Done};
use crate::cli::AskStopArgs;
use crate::exit;
use crate::identity::Identity;
use crate::output::{Failure, count};

pub(super) async fn ask(desk: &Desk, args: &AskStopArgs) -> Done {
    let (name, by) = (&args.name, Identity::here().person()?);
    let leasehold = desk.open().await?;
    let asked = leasehold.ask_release(name, by.clone(), args.reason.clone()).await;
    let asked = asked.map_err(|error| match error {
        Error::NotHeld { .. } => Failure::not_held(format!("nobody holds lock '{name}'")),
        error => error.into(),
    })?;
    let value = json!({ "name": name, "lock": name, "asked": asked, "by": by, "reason": args.reason });
    desk.printer.done(&value, |_| {
        let holders = count(asked.into(), "holder");
        format!("asked {holders} of '{name}' to stop\n")
    })?;
    desk.printer
        .say("each holder is notified now, or at its next renewal at the latest, and stops if it wants to");
    Ok(exit::SUCCESS)
}
