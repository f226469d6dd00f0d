//! A GitHub for tests. It does what the official description says: every request and every answer is held to it. And it
//! can be made to do what the real one does on bad days.

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
