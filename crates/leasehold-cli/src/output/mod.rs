//! Output of commands: results go to stdout, messages to stderr.

mod events;
mod explain;
mod failure;
#[cfg(test)]
mod fixture;
mod hints;
mod locks;
mod printer;
mod program;
mod secrets;
mod tasks;
mod text;
mod workflows;

pub(crate) use events::{EventScope, event_line, history_table};
pub(crate) use explain::{ExplainContext, Explanation};
pub(crate) use failure::{Failure, conflict_failure};
pub(crate) use locks::{LeaseView, Leases, lock_page, lock_table};
pub(crate) use printer::{Printer, Progress};
pub(crate) use program::set_program;
pub(crate) use secrets::{has_secrets, redacted_url};
#[cfg(feature = "serve")]
pub(crate) use tasks::token_table;
pub(crate) use tasks::{queue_table, schedule_page, schedule_table, task_page, task_table, worker_table};
pub(crate) use text::{Style, count, lines, shell_word, short, to_line, visible};
pub(crate) use workflows::{WorkflowView, execution_page, execution_table, workflow_page, workflow_table};
