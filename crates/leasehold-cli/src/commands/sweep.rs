//! `sweep`: removes ended leases and tickets, once, and forgets idle locks.

use leasehold::Leasehold;
use leasehold::model::{Swept, Ttl};
use serde::Serialize;

use super::dispatch::{Desk, Done};
use crate::cli::SweepArgs;
use crate::exit;
use crate::output::count;

/// Result, as JSON.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    swept: Swept,
    /// Number of idle locks that were forgotten, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    forgotten: Option<u32>,
}

pub(super) async fn sweep(desk: &Desk, args: &SweepArgs) -> Done {
    let leasehold = desk.open().await?;
    let swept = leasehold.sweep(args.limit).await?;
    let forgotten = match args.forget_after {
        Some(idle) => Some(forget(&leasehold, idle, args.limit).await?),
        None => None,
    };
    desk.printer.done(&Report { swept, forgotten }, |_| {
        let forgot = match forgotten {
            None | Some(0) => String::new(),
            Some(locks) => format!("forgot {}\n", count(locks.into(), "idle lock")),
        };
        if swept.leases + swept.tickets == 0 {
            return if forgot.is_empty() { "nothing to sweep\n".to_owned() } else { forgot };
        }
        let [leases, tickets, served] =
            [(swept.leases, "lease"), (swept.tickets, "ticket"), (swept.served, "waiter")]
                .map(|(number, word)| count(number.into(), word));
        format!("swept {leases} and {tickets}; {served} served\n{forgot}")
    })?;
    Ok(exit::SUCCESS)
}

/// Maximum number of calls. Each call examines some of the locks and continues where the last one
/// ended.
const CALLS: u32 = 32;

async fn forget(leasehold: &Leasehold, idle: Ttl, limit: u32) -> leasehold::Result<u32> {
    let mut forgotten = 0;
    for _ in 0..CALLS {
        forgotten += leasehold.forget_idle(idle, limit - forgotten).await?;
        if forgotten >= limit {
            break;
        }
    }
    Ok(forgotten)
}
