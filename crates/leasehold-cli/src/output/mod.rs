//! Output of commands: results go to stdout, messages to stderr.

mod events;
mod explain;
mod failure;
#[cfg(test)]
mod fixture;
mod ids;
mod locks;
mod printer;
mod program;
mod secrets;
mod similar;
mod stderr;
mod table;
mod task_events;
mod tasks;
mod text;
mod times;
mod wrap;
mod writer;

pub(crate) use events::{event_line, history_table};
pub(crate) use explain::{deadlock_page, explanation_page};
pub(crate) use failure::{Failure, conflict_failure};
pub(crate) use locks::{LeaseView, Leases, lock_page, lock_table};
pub(crate) use printer::{List, ListFormat, Printer, Progress};
pub(crate) use program::set_program;
pub(crate) use secrets::{has_secrets, redacted_url};
pub(crate) use similar::{most_similar, suggestion};
pub(crate) use stderr::{accepts_output, finish_messages, queue_messages, write_if_read, write_message};
pub(crate) use table::cut_to_width;
pub(crate) use task_events::{task_event_line, task_history_table};
#[cfg(feature = "serve")]
pub(crate) use tasks::token_table;
pub(crate) use tasks::{
    WorkflowView, execution_page, execution_table, queue_table, schedule_page, schedule_table, state_line,
    task_page, task_table, worker_table, workflow_page, workflow_table,
};
pub(crate) use text::{Style, count, lines, to_line, visible};
pub(crate) use times::{short, write_for_people};
pub(crate) use wrap::wrapped;
pub(crate) use writer::OutputWriter;
