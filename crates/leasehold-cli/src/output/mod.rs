//! Output of commands: results go to stdout, messages to stderr.

mod events;
mod explain;
mod failure;
#[cfg(test)]
mod fixture;
mod hints;
mod locks;
mod printer;
mod secrets;
mod table;
mod tasks;
mod text;
mod times;
mod writer;

pub(crate) use events::{event_line, history_table, task_event_line, task_history_table};
pub(crate) use explain::{deadlock_page, explanation_page};
pub(crate) use failure::{Failure, conflict_failure};
pub(crate) use hints::set_program;
pub(crate) use locks::{LeaseView, Leases, lock_page, lock_table};
pub(crate) use printer::{List, ListFormat, Printer, Progress};
pub(crate) use secrets::{has_secrets, redacted_url};
pub(crate) use table::cut_to_width;
#[cfg(feature = "serve")]
pub(crate) use tasks::token_table;
pub(crate) use tasks::{
    WorkflowView, execution_page, execution_table, queue_table, schedule_page, schedule_table, state_line,
    task_page, task_table, worker_table, workflow_page, workflow_table,
};
pub(crate) use text::{Style, count, lines, most_similar, suggestion, to_line, visible, wrapped};
pub(crate) use times::{short, write_for_people};
pub(crate) use writer::{
    OutputWriter, accepts_output, finish_messages, queue_messages, write_if_read, write_message,
};
