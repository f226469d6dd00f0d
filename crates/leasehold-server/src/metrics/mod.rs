//! What the server measures: about the store, about itself, and about what is in the store now.
//!
//! | file | idea |
//! |---|---|
//! | `meters.rs` | all of it together, for handlers |
//! | `requests.rs` | requests, by route and kind of answer |
//! | `webhooks.rs` | deliveries of webhooks, by trigger and outcome |
//! | `census.rs` | what is in the store now: counted at most every few seconds, and not without end |
//! | `process.rs` | what this process uses |
//! | `text.rs` | writing the text format of Prometheus |
//! | `page.rs` | every metric there is, by name |

mod census;
mod meters;
mod page;
mod process;
mod requests;
mod text;
mod webhooks;

pub(crate) use census::Count;
pub(crate) use meters::Meters;
pub(crate) use page::page;
pub(crate) use requests::count_requests;
