//! What people and programs get to see: stdout is data, stderr is talk.
//!
//! | file | idea |
//! |---|---|
//! | `printer.rs` | writing, to people or as JSON; a reader that has gone is no error |
//! | `failure.rs`, `refusal.rs` | what went wrong: who, why, what next, and the exit code |
//! | `json.rs` | JSON that is safe to show |
//! | `program.rs` | commands in hints, with the store |
//! | `secrets.rs` | passwords do not get out |
//! | `paint.rs` | colour, on a terminal only |
//! | `text.rs` | durations, times and names in sentences |
//! | `table.rs` | columns without borders |
//! | `locks.rs`, `events.rs`, `explain.rs` | locks as a table and as a page, events as lines, `why` as sentences |
//! | `tasks/`, `schedules.rs`, `workflows.rs` | tasks, queues and workers; schedules; workflows and executions |
//! | `tokens.rs` | tokens of the server |
//! | `progress.rs` | a bar for what takes long |
//! | `leases.rs` | leases that are held without a guard |

mod events;
mod explain;
mod failure;
mod json;
mod leases;
mod locks;
mod paint;
mod printer;
mod program;
mod progress;
mod refusal;
mod schedules;
mod secrets;
mod table;
mod tasks;
#[cfg(test)]
mod tests;
mod text;
mod tokens;
mod workflows;

pub(crate) use events::{Of, event_line, history_table};
pub(crate) use explain::{Around, Explanation};
pub(crate) use failure::Failure;
pub(crate) use json::to_line;
pub(crate) use leases::{LeaseView, Leases};
pub(crate) use locks::{lock_page, lock_table};
pub(crate) use paint::Paint;
pub(crate) use printer::Printer;
pub(crate) use program::set_program;
pub(crate) use progress::Progress;
pub(crate) use refusal::refusal;
pub(crate) use schedules::{schedule_page, schedule_table};
pub(crate) use secrets::{has_secrets, store_for_people};
pub(crate) use tasks::{queue_table, task_page, task_table, worker_table};
pub(crate) use text::{count, lines, shell_word, short, visible};
pub(crate) use tokens::token_table;
pub(crate) use workflows::{WorkflowView, execution_page, execution_table, workflow_page, workflow_table};
