//! Output of commands: results go to stdout, messages to stderr.

mod events;
mod explain;
mod failure;
#[cfg(test)]
mod fixture;
mod locks;
mod printer;
mod program;
mod progress;
mod schedules;
mod secrets;
mod style;
mod table;
mod tasks;
mod text;
mod tokens;
mod workflows;

pub(crate) use events::{EventScope, event_line, history_table};
pub(crate) use explain::{ExplainContext, Explanation};
pub(crate) use failure::{Failure, conflict_failure};
pub(crate) use locks::{LeaseView, Leases, lock_page, lock_table};
pub(crate) use printer::{Printer, to_line};
pub(crate) use program::set_program;
pub(crate) use progress::Progress;
pub(crate) use schedules::{schedule_page, schedule_table};
pub(crate) use secrets::{has_secrets, redacted_url};
pub(crate) use style::Style;
pub(crate) use tasks::{queue_table, task_page, task_table, worker_table};
pub(crate) use text::{count, lines, shell_word, short, visible};
pub(crate) use tokens::token_table;
pub(crate) use workflows::{WorkflowView, execution_page, execution_table, workflow_page, workflow_table};
