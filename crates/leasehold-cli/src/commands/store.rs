//! `store init`: prepares a store before its first use.

use leasehold::store::{self, StoreUrl};
use serde::Serialize;

use super::dispatch::{Desk, Done};
use crate::exit;
use crate::output::visible;

/// Store that is ready for use, as JSON.
#[derive(Serialize)]
struct Ready {
    store: String,
    engine: &'static str,
}

pub(super) async fn init(desk: &Desk) -> Done {
    let store = store::init(&StoreUrl::parse(desk.store_url())?).await?;
    let ready = Ready { store: store.url(), engine: store.capabilities().engine };
    desk.printer.done(&ready, |_| format!("{} is ready\n", visible(&ready.store)))?;
    Ok(exit::SUCCESS)
}
