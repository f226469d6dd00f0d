//! Fake of GitHub for tests. It follows the official description: every request and every response
//! is checked against it. It can also fail as the real service does.

mod app;
mod description;
mod faults;
mod git;
mod labels;
mod repo;
mod responses;
mod server;

pub(super) use app::App;
pub(super) use faults::{Fate, Ids, StaleRefs};
pub(super) use repo::Person;
pub(super) use server::Fake;
