//! Tasks on issues. A queue is a label, a task is an issue with it, and the lease of a task is the claim on its issue.
//!
//! Whoever changes a task holds the claim of its issue for that moment, and what is known of the task is written into that very
//! claim; so there is one order of all changes, that of the tokens. `docs/decisions/0021-tasks-on-github.md` says more.
//!
//! | file | idea |
//! |---|---|
//! | `record.rs` | what a claim says of the task, and the line for people |
//! | `labels.rs` | what labels mean |
//! | `made.rs` | what the text of an issue says that was made by a program |
//! | `sight.rs` | an issue and its comments as a task |
//! | `desk.rs` | what the calls share: which issue a task is, what was seen of it |
//! | `line.rs` | who is next |
//! | `leasing.rs`, `beating.rs`, `settling.rs` | a worker's calls |
//! | `changing.rs` | what people do to a task |
//! | `finishing.rs` | closing, labelling, opening an issue as its task wants it |
//! | `recovering.rs` | ending the leases of workers that are gone |
//! | `adding.rs` | issues for new tasks |
//! | `looking.rs` | tasks and queues for those who look |
//! | `store.rs` | the calls of the trait |

mod adding;
mod beating;
mod changing;
mod desk;
mod finishing;
mod labels;
mod leasing;
mod line;
mod looking;
mod made;
mod record;
mod recovering;
mod settling;
mod sight;
mod store;

pub(super) use desk::facts;
pub(super) use labels::tell as tell_labels;
pub(super) use record::Record;
pub(super) use store::{CAN, GithubTasks};
