//! `watch`: what happens from now on, as it happens.

use std::time::Duration;

use leasehold::Leasehold;
use leasehold::client::EventView;
use leasehold::store::{Cursor, ListEvents, Span};

use super::dispatch::{Desk, Done};
use crate::cli::WatchArgs;
use crate::output::{Failure, event_line};

/// How often to look.
const LOOK: Duration = Duration::from_millis(150);
/// So many are asked for at a time.
const PAGE: u32 = 500;

/// Ends when its reader does, or is interrupted.
pub(super) async fn watch(desk: &Desk, args: &WatchArgs) -> Done {
    let leasehold = desk.open().await?;
    let mut place = now(&leasehold).await?;
    desk.printer.say("watching; press Ctrl-C to stop");
    loop {
        // All events, each read once; those of one lock would be searched for again at every look.
        let ask = ListEvents { lock: None, span: Span::After(place.clone()), limit: PAGE };
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

/// After the newest event there is.
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
