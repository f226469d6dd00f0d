//! `store init`: making a store ready before it is used.

use leasehold::store::{self, StoreUrl};
use serde::Serialize;

use super::dispatch::{Desk, Done};
use crate::exit;
use crate::output::visible;

/// A store that can be used.
#[derive(Serialize)]
struct Ready {
    store: String,
    engine: &'static str,
}

pub(super) async fn init(desk: &Desk) -> Done {
    let store = store::init(&StoreUrl::parse(desk.store_url())?).await?;
    let ready = Ready { store: store.url(), engine: store.abilities().engine };
    desk.printer.done(&ready, |_| format!("{} is ready\n", visible(&ready.store)))?;
    Ok(exit::SUCCESS)
}
