//! DynamoDB engine, `dynamodb://TABLE`: many machines, without a server to operate.
//!
//! A lock is one item, written under a condition on its version; [`Cas`](super::Cas) implements the
//! loop around that.

mod connection;
mod documents;
mod error;
#[cfg(all(test, feature = "testing"))]
mod fuzz;
mod health;
mod item;
mod options;
mod table;

pub use crate::store::server_clock::Judge;
pub use connection::{connect, create_table};
pub use options::DynamoDbOptions;
