//! Workflows through the client, over two connections to one schema.

use leasehold::Leasehold;

use super::server::Schema;
use crate::client::workflows::lab::{Lab, memory};

async fn lab() -> Lab {
    // Skipped by name: the case runs on the rules alone.
    let Some(schema) = Schema::new() else { return memory().await };
    let one = Leasehold::with_store(schema.store().await).unwrap();
    let two = Leasehold::with_store(schema.store().await).unwrap();
    Lab::new(one, two, schema)
}

crate::client::workflows::workflow_cases!(crate::engines::postgres::workflows::lab);
