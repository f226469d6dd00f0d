//! DynamoDB engine, `dynamodb://TABLE`: many machines, without a server to operate.
//!
//! A lock is one item, written under a condition on its version; [`Cas`](super::Cas) implements the
//! loop around that.

mod connect;
mod dates;
mod docs;
mod health;
mod item;
mod options;
mod table;
mod trouble;

pub use connect::{connect, create_table};
pub use options::{DynamoDbOptions, Judge};
