//! `sweep` and `store init`.

use leasehold::Leasehold;
use leasehold::model::{Swept, Ttl};
use leasehold::store::{self, StoreUrl};
use serde::Serialize;

use super::context::{CommandContext, CommandResult};
use crate::cli::SweepArgs;
use crate::output::{count, visible};

#[derive(Serialize)]
struct SweepReport {
    #[serde(flatten)]
    swept: Swept,
    /// Number of idle locks that were forgotten, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    forgotten: Option<u32>,
}

pub(super) async fn sweep(context: &CommandContext, args: &SweepArgs) -> CommandResult {
    let leasehold = context.open().await?;
    let swept = leasehold.locks().sweep(args.limit).await?;
    let forgotten = match args.forget_after {
        Some(idle) => Some(forget(&leasehold, idle, args.limit).await?),
        None => None,
    };
    context.printer.success(&SweepReport { swept, forgotten }, |_| {
        let forgot = match forgotten {
            None | Some(0) => String::new(),
            Some(locks) => format!("forgot {}\n", count(locks.into(), "idle lock")),
        };
        if swept.leases + swept.tickets == 0 {
            return if forgot.is_empty() { "nothing to sweep\n".to_owned() } else { forgot };
        }
        let [leases, tickets, waiters] =
            [(swept.leases, "lease"), (swept.tickets, "ticket"), (swept.granted, "waiter")]
                .map(|(number, word)| count(number.into(), word));
        format!("swept {leases} and {tickets}; granted to {waiters}\n{forgot}")
    })
}

/// Maximum number of calls. Each call examines some of the locks and continues where the last one ended.
const MAX_CALLS: u32 = 32;

async fn forget(leasehold: &Leasehold, idle: Ttl, limit: u32) -> leasehold::Result<u32> {
    let mut forgotten = 0;
    for _ in 0..MAX_CALLS {
        forgotten += leasehold.locks().forget_idle(idle, limit - forgotten).await?;
        if forgotten >= limit {
            break;
        }
    }
    Ok(forgotten)
}

#[derive(Serialize)]
struct ReadyStore {
    store: String,
    engine: &'static str,
}

pub(super) async fn init(context: &CommandContext) -> CommandResult {
    let store = store::init(&StoreUrl::parse(&context.store.url)?).await?;
    let ready = ReadyStore { store: store.url(), engine: store.capabilities().engine };
    context.printer.success(&ready, |_| format!("{} is ready\n", visible(&ready.store)))
}
