//! A GitHub for tests. It does what the official description says: every request and every answer is held to it. And it
//! can be made to do what the real one does on bad days.
//!
//! | file | idea |
//! |---|---|
//! | `app.rs` | an App that proves who it is |
//! | `description.rs` | the official description: what may be asked and answered |
//! | `repo.rs` | one repository: its issues, comments and people |
//! | `git.rs` | its commits and refs |
//! | `switches.rs` | what goes wrong |
//! | `server.rs` | the server itself |
//! | `labels.rs` | labels, events, and lists that have not changed |
//! | `show.rs` | issues, comments and people as the description wants them |

mod app;
mod description;
mod git;
mod labels;
mod repo;
mod server;
mod show;
mod switches;

pub(super) use app::App;
pub(super) use repo::Person;
pub(super) use server::Fake;
pub(super) use switches::{Fate, Ids, OldRefs};
