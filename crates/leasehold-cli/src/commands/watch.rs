//! `watch`: prints events as they happen.

use std::time::Duration;

use leasehold::Leasehold;
use leasehold::client::EventView;
use leasehold::store::{Cursor, EventRange, ListEvents};

use super::dispatch::{Desk, Done};
use crate::cli::WatchArgs;
use crate::output::{Failure, event_line};

/// Poll interval.
const LOOK: Duration = Duration::from_millis(150);
/// Maximum number of events per query.
const PAGE: u32 = 500;

/// Prints events until its reader closes the pipe or the user interrupts it.
pub(super) async fn watch(desk: &Desk, args: &WatchArgs) -> Done {
    let leasehold = desk.open().await?;
    let mut place = now(&leasehold).await?;
    desk.printer.say("watching; press Ctrl-C to stop");
    loop {
        // Read all events, each once; a query for one lock would search the history again at every
        // poll.
        let ask = ListEvents { lock: None, span: EventRange::After(place.clone()), limit: PAGE };
        let page = leasehold.history(&ask).await?;
        for event in page.items.iter().filter(|event| is_wanted(event, args)) {
            desk.printer.line(event, |paint| event_line(event, paint))?;
        }
        place = page.next.unwrap_or(place);
        if page.items.is_empty() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Returns the position after the newest event.
async fn now(leasehold: &Leasehold) -> Result<Cursor, Failure> {
    let newest = ListEvents { limit: 1, ..ListEvents::default() };
    let page = leasehold.history(&newest).await?;
    Ok(page.next.unwrap_or_else(Cursor::start))
}

fn is_wanted(event: &EventView, args: &WatchArgs) -> bool {
    let named = args.name.as_ref().is_none_or(|name| *name == event.lock);
    let prefix = args.prefix.as_deref().unwrap_or_default();
    named && event.lock.as_str().starts_with(prefix)
}
