//! `leasehold history` and `leasehold watch`.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use leasehold::model::{LockName, QueueName, WorkflowName};

use super::values::{self, ExecutionIdArg, TaskIdArg};
use crate::complete;

const HISTORY: &str = "\
Examples:
  leasehold history deploy                    the events of a lock
  leasehold history --queue mail --limit 200
  leasehold history --task 1deadbeef          one task, by the last characters of its id
  leasehold history --workflow release --json";

const WATCH: &str = "\
Examples:
  leasehold watch --prefix deploy/
  leasehold watch --queue mail
  leasehold watch --tasks --json | jq 'select(.kind == \"failed\")'";

/// Show past events of locks, or of tasks, newest last
///
/// Without an option, the events of all locks are shown. The events of tasks come from the tasks that are stored: those of
/// the newest 500 tasks, or of as many as --limit if it is higher; a task keeps its newest 50 attempts and changes.
#[derive(Debug, Args)]
#[command(after_help = HISTORY)]
pub(crate) struct HistoryArgs {
    /// Name of the lock [default: all]
    #[arg(add = ArgValueCompleter::new(complete::locks))]
    pub(crate) name: Option<LockName>,
    #[command(flatten)]
    selection: TaskSelection,
    /// Events of this task: its id in full, or its first or last characters
    #[arg(long, value_name = "ID", conflicts_with_all = ["name", "TaskSelection"])]
    #[arg(add = ArgValueCompleter::new(complete::tasks))]
    task: Option<TaskIdArg>,
    /// Events of this execution of a workflow: its id, in full or in part
    #[arg(long, value_name = "ID", conflicts_with_all = ["name", "TaskSelection", "task"])]
    #[arg(add = ArgValueCompleter::new(complete::executions))]
    execution: Option<ExecutionIdArg>,
    /// Maximum number of events; the newest ones are shown
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = values::limit, allow_hyphen_values = true)]
    pub(crate) limit: u32,
}

/// Print new events of locks, or of tasks, as they happen, one line per event
///
/// Without an option, the events of all locks are printed. Events of tasks are found by polling, every half second, on GitHub
/// every half minute. With more than 5,000 open tasks some events may be missing; a message says so.
#[derive(Debug, Args)]
#[command(after_help = WATCH)]
pub(crate) struct WatchArgs {
    /// Name of the lock [default: all]
    #[arg(add = ArgValueCompleter::new(complete::locks))]
    pub(crate) name: Option<LockName>,
    /// Only locks whose name starts with this
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["name", "TaskSelection"])]
    pub(crate) prefix: Option<String>,
    #[command(flatten)]
    selection: TaskSelection,
}

/// Tasks whose events are shown instead of those of locks.
#[derive(Debug, Args)]
#[group(multiple = false, conflicts_with = "name")]
pub(crate) struct TaskSelection {
    /// Events of the tasks of this queue
    #[arg(long, value_name = "QUEUE", add = ArgValueCompleter::new(complete::queues))]
    queue: Option<QueueName>,
    /// Events of the executions of this workflow
    #[arg(long, value_name = "WORKFLOW", add = ArgValueCompleter::new(complete::workflows))]
    workflow: Option<WorkflowName>,
    /// Events of the tasks of all queues
    #[arg(long)]
    tasks: bool,
}

/// Queue of the selected tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SelectedQueue {
    All,
    One(QueueName),
}

/// Tasks whose past events are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SelectedTasks {
    Task(TaskIdArg),
    Execution(ExecutionIdArg),
    Queue(SelectedQueue),
}

impl HistoryArgs {
    /// Returns the selected tasks; `None` if locks are selected.
    pub(crate) fn tasks(&self) -> Option<SelectedTasks> {
        let task = self.task.clone().map(SelectedTasks::Task);
        let one = task.or_else(|| self.execution.clone().map(SelectedTasks::Execution));
        one.or_else(|| self.selection.queue().map(SelectedTasks::Queue))
    }
}

impl WatchArgs {
    /// Returns the queue whose tasks are selected; `None` if locks are selected.
    pub(crate) fn queue(&self) -> Option<SelectedQueue> {
        self.selection.queue()
    }
}

impl TaskSelection {
    fn queue(&self) -> Option<SelectedQueue> {
        let of_workflow = || self.workflow.as_ref().map(WorkflowName::queue);
        let one = self.queue.clone().or_else(of_workflow).map(SelectedQueue::One);
        one.or_else(|| self.tasks.then_some(SelectedQueue::All))
    }
}
