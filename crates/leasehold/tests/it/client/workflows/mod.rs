//! Workflows through the client: every row of the table of starts, on every engine with tasks.
//!
//! | file | idea |
//! |---|---|
//! | `cases.rs` | the one list of cases |
//! | `lab.rs` | two handles on one store, and runners for them |
//! | `starting.rs` | what a start comes to: keys, locks, lines |
//! | `racing.rs` | many starts at once |
//! | `running.rs` | how executions end |
//! | `by_hand.rs` | looking, stopping, unlocking, and what is stale |
//! | `external.rs` | executions that somebody else runs |

pub(crate) mod by_hand;
mod cases;
pub(crate) mod external;
pub(crate) mod lab;
pub(crate) mod racing;
pub(crate) mod running;
pub(crate) mod starting;

pub(crate) use cases::workflow_cases;

mod memory {
    super::workflow_cases!(crate::client::workflows::lab::memory);
}

mod sqlite {
    super::workflow_cases!(crate::client::workflows::lab::sqlite);
}
