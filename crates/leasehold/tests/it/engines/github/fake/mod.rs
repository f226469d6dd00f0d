//! A GitHub for tests. It does what the official description says: every request and every answer is held to it. And it
//! can be made to do what the real one does on bad days.
//!
//! | file | idea |
//! |---|---|
//! | `description.rs` | the official description: what may be asked and answered |
//! | `repo.rs` | one repository: its issues, comments and people |
//! | `switches.rs` | what goes wrong |
//! | `server.rs` | the server itself |
//! | `labels.rs` | labels, events, and lists that have not changed |
//! | `show.rs` | issues, comments and people as the description wants them |

mod description;
mod labels;
mod repo;
mod server;
mod show;
mod switches;

pub(super) use repo::Person;
pub(super) use server::Fake;
pub(super) use switches::{Fate, Ids};
