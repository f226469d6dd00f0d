//! Workflows through the client, over two connections to one schema.

use leasehold::Leasehold;

use super::schema::Schema;
use crate::client::workflows::fixture::Lab;

async fn lab() -> Lab {
    let schema = Schema::new();
    let one = Leasehold::with_store(schema.store().await).unwrap();
    let two = Leasehold::with_store(schema.store().await).unwrap();
    Lab::new(one, two, schema)
}

crate::client::workflows::workflow_cases!(crate::engines::postgres::workflows::lab);

mod feed {
    crate::client::task_feed::feed_cases!(crate::engines::postgres::workflows::lab);
}
