//! `dynamodb://TABLE`: many machines, and none to look after.
//!
//! A lock is one item, written under a condition on its version; the loop around that is [`Cas`](super::Cas).
//!
//! | file | idea |
//! |---|---|
//! | `options.rs` | from a URL to a table and its settings |
//! | `connect.rs` | the client, and whether the table can be used |
//! | `table.rs` | making the table, looking at it |
//! | `docs.rs`, `item.rs` | documents as items |
//! | `dates.rs` | the time in the service's answers |
//! | `examine.rs` | what `leasehold doctor` tells |
//! | `trouble.rs` | what DynamoDB says, in our words |

mod connect;
mod dates;
mod docs;
mod examine;
mod item;
mod options;
mod table;
mod trouble;

pub use connect::{connect, create_table};
pub use options::{DynamoDbOptions, Judge};
