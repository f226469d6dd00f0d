//! `locks status` and `locks why`.

use leasehold::LockStatus;
use leasehold::client::HolderStatus;
use leasehold::model::LockName;
use leasehold::store::ListEvents;

use super::dispatch::{Desk, Done};
use crate::cli::StatusArgs;
use crate::exit;
use crate::identity::{Seen, is_mine};
use crate::output::{Around, Explanation, lock_page};

pub(super) async fn status(desk: &Desk, args: &StatusArgs) -> Done {
    let status = desk.open().await?.status(&args.name).await?;
    desk.printer.result(&status, |paint| lock_page(&status, paint))?;
    Ok(if args.exit_code && is_held(&status) { exit::NOT_ACQUIRED } else { exit::SUCCESS })
}

pub(super) async fn why(desk: &Desk, name: &LockName) -> Done {
    let leasehold = desk.open().await?;
    let status = leasehold.status(name).await?;
    let newest = ListEvents { lock: Some(name.clone()), limit: 1, ..ListEvents::default() };
    let events = leasehold.history(&newest).await?.items;
    let is_mine =
        |held: &HolderStatus| is_mine(Seen { lock: name, holder: &held.holder, token: held.token }, None);
    let around = Around { program: desk.program(), last: events.first(), is_mine: &is_mine };
    let explanation = Explanation::new(&status, &around);
    desk.printer.result(&explanation, |paint| explanation.text(paint))?;
    Ok(exit::SUCCESS)
}

/// Whether a live holder has the lock: a lease whose process is dead does not keep other holders
/// out.
pub(super) fn is_held(status: &LockStatus) -> bool {
    status.holders.iter().any(|held| !held.stale)
}
