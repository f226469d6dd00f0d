//! Workflows through the client, over two connections to one server.

use std::sync::Arc;

use leasehold::Leasehold;
use leasehold::store::redis::RedisStore;

use super::support::{options, prefix};
use crate::client::workflows::fixture::Lab;
use crate::engines::support::engine_at;

async fn lab() -> Lab {
    let url = engine_at("redis");
    let prefix = prefix();
    let client = || async { Arc::new(RedisStore::connect(options(&url, &prefix)).await.unwrap()) };
    let one = Leasehold::with_store(client().await).unwrap();
    let two = Leasehold::with_store(client().await).unwrap();
    Lab::new(one, two, ())
}

crate::client::workflows::workflow_cases!(crate::engines::redis::workflows::lab);

mod feed {
    crate::client::task_feed::feed_cases!(crate::engines::redis::workflows::lab);
}
