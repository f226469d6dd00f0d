//! `history`: lists past events, newest last.

use leasehold::Leasehold;
use leasehold::client::EventView;
use leasehold::store::{EventRange, ListEvents};

use super::dispatch::{Desk, Done};
use crate::cli::HistoryArgs;
use crate::exit;
use crate::output::{Failure, Of, history_table};

/// Maximum number of events per query.
const PAGE: usize = 500;

pub(super) async fn history(desk: &Desk, args: &HistoryArgs) -> Done {
    let events = newest(&desk.open().await?, args).await?;
    let of = if args.name.is_some() { Of::One } else { Of::All };
    desk.printer.result(&events, |paint| {
        if events.is_empty() { String::new() } else { history_table(&events, of, paint) }
    })?;
    if events.is_empty() {
        desk.printer.say("nothing is known to have happened");
    }
    Ok(exit::SUCCESS)
}

/// Returns the requested number of newest events, newest last.
async fn newest(leasehold: &Leasehold, args: &HistoryArgs) -> Result<Vec<EventView>, Failure> {
    let most = args.limit as usize;
    let mut events = Vec::new();
    let mut span = EventRange::Newest;
    while events.len() < most {
        let limit = u32::try_from(PAGE.min(most - events.len())).unwrap_or(u32::MAX);
        let ask = ListEvents { lock: args.name.clone(), span, limit };
        let page = leasehold.history(&ask).await?;
        events.extend(page.items);
        match page.next {
            Some(next) => span = EventRange::Before(next),
            None => break,
        }
    }
    events.reverse();
    Ok(events)
}
