//! Output of commands: results go to stdout, messages to stderr.

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
