//! `sweep`: clearing away what has ended, once.

use super::dispatch::{Desk, Done};
use crate::cli::SweepArgs;
use crate::exit;
use crate::output::count;

pub(super) async fn sweep(desk: &Desk, args: &SweepArgs) -> Done {
    let swept = desk.open().await?.sweep(args.limit).await?;
    desk.printer.result(&swept, |_| {
        if swept.leases + swept.tickets == 0 {
            return "nothing to sweep\n".to_owned();
        }
        let [leases, tickets, served] =
            [(swept.leases, "lease"), (swept.tickets, "ticket"), (swept.served, "waiter")]
                .map(|(number, word)| count(number.into(), word));
        format!("swept {leases} and {tickets}; {served} served\n")
    })?;
    Ok(exit::SUCCESS)
}
