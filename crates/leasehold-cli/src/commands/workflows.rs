//! `workflows list`, `status`, `run`; `executions list`, `show`, `abort`.

use std::time::Duration;

use leasehold::model::{ExecutionId, ExecutionInput, Holder, Reason, TaskState, Ttl, WorkflowName};
use leasehold::store::{Capabilities, StoreUrl};
use leasehold::{Error, Execution, Leasehold, ListExecutions, StartResult, Workflows};
use serde::Serialize;

use super::context::{
    CommandContext, CommandResult, block_on, change_each, collect_pages, persistent, with_code,
};
use super::ids;
use super::tasks::add::read as read_payload;
use super::tasks::logs;
use crate::cli::{
    AbortArgs, ExecutionIdArg, ExecutionsCommand, ListExecutionsArgs, RunWorkflowArgs, WorkflowsCommand,
};
use crate::config::{StoreChoice, containment, lease_ttl};
use crate::exit;
use crate::identity::Identity;
use crate::output::{
    Failure, List, Printer, WorkflowView, execution_page, execution_table, to_line, workflow_page,
    workflow_table,
};
use crate::run::Launcher;
use crate::wait::{WaitDisplay, WaitState};
use crate::work::{KEPT_OUTPUT, StopCondition, StopSignals, WorkPlan, work, write_in_time};

pub(super) async fn workflows(context: &CommandContext, command: WorkflowsCommand) -> CommandResult {
    match command {
        WorkflowsCommand::List { .. } => list(context).await,
        WorkflowsCommand::Status { workflow } => status(context, &workflow).await,
        // Handled in the main dispatch, because it creates its own runtime.
        WorkflowsCommand::Run(_) => Ok(exit::SUCCESS),
    }
}

pub(super) async fn executions(context: &CommandContext, command: ExecutionsCommand) -> CommandResult {
    match command {
        ExecutionsCommand::List(args) => list_executions(context, args).await,
        ExecutionsCommand::Show { id } => show(context, &id).await,
        ExecutionsCommand::Logs { id, options } => logs::of_execution(context, &id, &options).await,
        ExecutionsCommand::Abort(args) => abort(context, args).await,
    }
}

async fn list(context: &CommandContext) -> CommandResult {
    let leasehold = context.open().await?;
    let workflows = leasehold.workflows()?;
    context
        .print_list(&leasehold, async |printer| {
            let all = workflows.list().await?;
            let views: Vec<_> = all.iter().map(WorkflowView::from).collect();
            printer.list(List {
                values: &views,
                name: |view: &WorkflowView| view.workflow.clone(),
                empty: "there is no workflow yet: a workflow is created with its first execution",
                more: None,
                table: |style| workflow_table(&all, style),
            })
        })
        .await
}

async fn status(context: &CommandContext, workflow: &WorkflowName) -> CommandResult {
    let lock = context.open().await?.workflows()?.lock(workflow).await?;
    context.printer.result(&lock, |style| workflow_page(&lock, style))
}

async fn list_executions(context: &CommandContext, args: ListExecutionsArgs) -> CommandResult {
    let leasehold = context.open().await?;
    let workflows = leasehold.workflows()?;
    context
        .print_list(&leasehold, async |printer| {
            let limit = args.limit as usize;
            let mut found = find_executions(&workflows, &args, limit).await?;
            let more = found.len() > limit;
            found.truncate(limit);
            let now = leasehold.now().await?;
            printer.list(List {
                values: &found,
                name: |execution: &Execution| execution.id.to_string(),
                empty: "no such execution",
                more: more.then_some("there are more; raise --limit"),
                table: |style| execution_table(&found, now, style),
            })
        })
        .await
}

/// Returns the requested executions; more than `limit` if there are more.
async fn find_executions(
    workflows: &Workflows,
    args: &ListExecutionsArgs,
    limit: usize,
) -> Result<Vec<Execution>, Error> {
    if let Some(key) = &args.key {
        // Read all executions of the key: their state can be filtered only afterwards.
        let mut found = workflows.with_key(args.workflow.as_ref(), key, usize::MAX).await?;
        found.retain(|execution| args.state.is_none_or(|state| execution.state == state));
        return Ok(found);
    }
    let query = ListExecutions::default().workflow(args.workflow.clone()).state(args.state);
    let mut query = query.limit(args.limit.saturating_add(1));
    collect_pages(limit, async |after| {
        query.after = after;
        workflows.executions(&query).await
    })
    .await
}

async fn show(context: &CommandContext, id: &ExecutionIdArg) -> CommandResult {
    let leasehold = context.open().await?;
    let id = ids::execution(&leasehold.tasks()?, id).await?;
    let execution = leasehold.workflows()?.get(id).await?;
    let now = leasehold.now().await?;
    context.printer.result(&execution, |style| execution_page(&execution, now, style))
}

async fn abort(context: &CommandContext, args: AbortArgs) -> CommandResult {
    let leasehold = context.open().await?;
    let (tasks, workflows) = (leasehold.tasks()?, leasehold.workflows()?);
    let by = Identity::current().operator()?;
    let abort = async |id: &ExecutionIdArg| {
        let id = ids::execution(&tasks, id).await?;
        Ok(workflows.abort(id, by.clone(), args.reason.clone()).await?)
    };
    let (aborted, code) = change_each(context, &args.ids, abort).await;
    with_code(context.printer.result(&aborted, |_| aborted.iter().map(state_line).collect()), code)
}

fn state_line(execution: &Execution) -> String {
    let running = execution.state == TaskState::Running;
    let word = if running { "stopping".to_owned() } else { execution.state.to_string() };
    format!("{}  {word}\n", execution.id)
}

/// Interval at which a queued execution is polled; the poll interval of the store if that is longer.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum time for reading the queue of the workflow, and number of executions that are read.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
const LISTED: u32 = 100;

/// Starts and runs an execution. Must be called while this process has one thread.
pub(super) fn run(args: RunWorkflowArgs, store: &StoreChoice, printer: Printer) -> CommandResult {
    StoreUrl::parse(&store.url)?;
    let store_url = store.absolute();
    let ttl = lease_ttl(args.ttl)?.unwrap_or(Capabilities::TTL);
    let input = ExecutionInput::Json(read_payload(args.input)?);
    let contain = containment(args.contain)?;
    let launcher =
        Launcher::new(args.command, store_url.clone(), ttl.as_duration(), args.kill_after, contain)?;
    let by = Identity::current().operator()?;
    block_on(async move {
        let leasehold = persistent(Leasehold::connect(&store_url).await?, "an execution")?;
        let (queue, name) = (args.workflow.queue(), args.workflow.clone());
        let mut start =
            leasehold.workflow(args.workflow).on_locked(args.on_locked.0).reuse(args.reuse.into());
        start = start.started_by(&by);
        // If this process is killed while it waits, the execution expires and does not block others.
        start = start.runner_ttl(ttl.as_duration());
        if let Some(key) = args.key {
            start = start.key(key);
        }
        if let Some(longest) = args.max_runtime {
            start = start.max_runtime(longest);
        }
        // From here on a signal must not end this process before it has withdrawn the execution.
        let mut signals = StopSignals::listen().map_err(Failure::internal)?;
        let started = start.start_with(input).await?;
        let workflows = leasehold.workflows()?;
        let own = match &started {
            StartResult::Started(execution) | StartResult::Queued(execution) => Some(execution.id),
            StartResult::Duplicate(_) | StartResult::Skipped { .. } => None,
        };
        // From here on this process waits for its execution, also if the readers of its output are slow.
        let _heartbeat = own.map(|id| RunnerHeartbeat::start(workflows.clone(), id, ttl));
        if let Some(signal) = report_start(printer, &name, &started, &mut signals).await {
            if let Some(id) = own {
                abort_if_not_started(&workflows, id, &by).await?;
            }
            return Ok(exit::SIGNAL_BASE + signal);
        }
        let id = match started {
            StartResult::Started(execution) | StartResult::Queued(execution) => execution.id,
            StartResult::Duplicate(execution) => return duplicate(&execution),
            StartResult::Skipped { .. } => return Ok(exit::SUCCESS),
        };
        if printer.advises() {
            printer.message_if_read(format_args!("leasehold: execution {id}"));
        }
        let interval = POLL_INTERVAL.max(leasehold.capabilities().poll);
        let code = loop {
            let mut display = WaitDisplay::of_command(printer).min_interval(interval);
            let turn =
                wait_for_turn(&workflows, &name, id, &by, interval, &mut signals, &mut display).await?;
            match turn {
                Turn::Next => display.finish("it is the turn of this execution"),
                Turn::Over => {
                    display.finish("this execution is over");
                    break exit::SUCCESS;
                }
                Turn::Signal(signal) => return Ok(exit::SIGNAL_BASE + signal),
            }
            let plan = WorkPlan {
                store_url: store_url.clone(),
                queues: vec![queue.clone()],
                slots: 1,
                ttl: Some(ttl),
                kill_after: args.kill_after,
                grace: args.grace,
                // The execution has its own limit.
                max_runtime: None,
                keep_output: KEPT_OUTPUT,
                prefixes: Some(false),
                recover_every: None,
                stop_when: StopCondition::Execution(id),
                launcher: launcher.clone(),
            };
            let code = work(plan, printer, Some(&mut signals)).await?;
            // The worker also ends if another execution has overtaken this one.
            if code != exit::SUCCESS || workflows.get(id).await?.state.is_terminal() {
                break code;
            }
        };
        let execution = abort_if_not_started(&workflows, id, &by).await?;
        report_end(&execution, code, printer, &mut signals).await
    })
}

/// Reports how the execution has ended, and returns the exit code; `code` is that of the worker. A signal ends this
/// process although its output is not read.
async fn report_end(
    execution: &Execution,
    code: i32,
    printer: Printer,
    signals: &mut StopSignals,
) -> CommandResult {
    let success = execution.state == TaskState::Succeeded;
    let mut event = String::new();
    if printer.json {
        event = to_line(&RunEvent::Finished { success, execution }).map_err(Failure::internal)? + "\n";
    }
    let failure = (code == exit::SUCCESS && !success).then(|| failed(execution));
    let message = failure.as_ref().map(|failure| failure.rendered(printer.json)).unwrap_or_default();
    write_in_time(event, message, signals, code != exit::SUCCESS).await;
    Ok(failure.map_or(code, |failure| failure.exit))
}

/// Event of the execution that `workflows run` runs, as JSON.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum RunEvent<'a> {
    Start {
        workflow: &'a WorkflowName,
        /// `started`, `queued`, `duplicate` or `skipped`.
        outcome: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        execution_id: Option<ExecutionId>,
        #[serde(skip_serializing_if = "Option::is_none")]
        state: Option<TaskState>,
        /// Execution that holds the workflow's lock, if the start was skipped.
        #[serde(skip_serializing_if = "Option::is_none")]
        existing_execution_id: Option<ExecutionId>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
    },
    Finished {
        success: bool,
        execution: &'a Execution,
    },
}

/// Reports what the start has led to. Returns a signal that arrived before the output was read.
async fn report_start(
    printer: Printer,
    workflow: &WorkflowName,
    start: &StartResult,
    signals: &mut StopSignals,
) -> Option<i32> {
    let (outcome, existing_execution_id, reason) = match start {
        StartResult::Started(_) => ("started", None, None),
        StartResult::Queued(_) => ("queued", None, None),
        StartResult::Duplicate(_) => ("duplicate", None, None),
        StartResult::Skipped { execution, reason } => ("skipped", *execution, Some(reason.as_str())),
    };
    let (execution_id, state) = start.execution().map(|execution| (execution.id, execution.state)).unzip();
    let mut event = String::new();
    if printer.json {
        let report =
            RunEvent::Start { workflow, outcome, execution_id, state, existing_execution_id, reason };
        event = to_line(&report).map_or_else(|_| String::new(), |line| line + "\n");
    }
    let message = match (start, execution_id) {
        (StartResult::Skipped { reason, .. }, _) => {
            printer.message_text(format_args!("leasehold: skipped: {reason}"))
        }
        (StartResult::Duplicate(_), Some(id)) if state == Some(TaskState::Succeeded) => printer
            .message_text(format_args!("leasehold: nothing to do: {id} has already succeeded for this key")),
        _ => String::new(),
    };
    if event.is_empty() && message.is_empty() {
        return None;
    }
    // A closed reader must not keep the execution from running.
    write_in_time(event, message, signals, false).await
}

/// Returns the result for a key that started an execution earlier: that of the earlier execution.
fn duplicate(execution: &Execution) -> CommandResult {
    let (id, state) = (execution.id, execution.state);
    match state {
        TaskState::Succeeded => Ok(exit::SUCCESS),
        TaskState::Failed | TaskState::Aborted => {
            let message = format!("nothing was run: {id} {} earlier for this key", ended(state));
            Err(Failure::new(exit::DUPLICATE_FAILED, "EXECUTION_FAILED", message)
                .hint(format!("see it with: leasehold executions show {id}"))
                .hint("use another key, or --reuse finished"))
        }
        _ => {
            let message = format!("nothing was run: {id} is {state} for this key");
            Err(Failure::new(exit::DUPLICATE_OPEN, "EXECUTION_NOT_FINISHED", message)
                .hint(format!("see it with: leasehold executions show {id}")))
        }
    }
}

/// Returns the failure for an execution that did not succeed. The stderr of its command has been
/// forwarded already and is not repeated.
fn failed(execution: &Execution) -> Failure {
    let reason = execution.reason.as_deref().and_then(|reason| reason.lines().next());
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    let message = format!("{} {}{reason}", execution.id, ended(execution.state));
    Failure::new(exit::FAILURE, "EXECUTION_FAILED", message)
}

/// Returns the state of an execution as a predicate for a sentence.
fn ended(state: TaskState) -> String {
    match state {
        TaskState::Aborted => "was aborted".to_owned(),
        state if state.is_terminal() => state.to_string(),
        state => format!("is {state}"),
    }
}

/// Heartbeat: reports until it is dropped that this process still waits for its execution.
struct RunnerHeartbeat(tokio::task::JoinHandle<()>);

impl RunnerHeartbeat {
    fn start(workflows: Workflows, id: ExecutionId, ttl: Ttl) -> Self {
        Self(tokio::spawn(async move {
            let every = ttl.as_duration() / 3;
            let (mut pause, mut has_warned) = (every, false);
            loop {
                tokio::time::sleep(pause).await;
                pause = match workflows.renew_runner(id, ttl).await {
                    Ok(_) => every,
                    Err(error) if error.is_retryable() => (every / 5).min(Duration::from_secs(1)),
                    // It may be permitted later: a proxy can refuse a request that the server permits.
                    Err(error) if error.is_not_permitted() => {
                        if !std::mem::replace(&mut has_warned, true) {
                            let message =
                                "fails unless its turn comes, or its runner can renew it, within its ttl";
                            tracing::warn!(%error, "{id} {message}; retrying");
                        }
                        every
                    }
                    // The execution is over.
                    Err(_) => return,
                };
            }
        }))
    }
}

impl Drop for RunnerHeartbeat {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How the wait for the turn of an execution has ended.
enum Turn {
    /// The execution is the next to run, or another worker runs it.
    Next,
    /// The execution is over: it was aborted, or another worker has run it.
    Over,
    /// This signal has arrived, and the execution was removed from the queue.
    Signal(i32),
}

/// Waits until the execution is the next to run, or over. If a signal arrives before that, removes
/// the execution from the queue.
async fn wait_for_turn(
    workflows: &Workflows,
    name: &WorkflowName,
    id: ExecutionId,
    by: &Holder,
    interval: Duration,
    signals: &mut StopSignals,
    display: &mut WaitDisplay,
) -> Result<Turn, Failure> {
    loop {
        let turn = async {
            match workflows.get(id).await.map(|execution| execution.state) {
                Ok(state) if state.is_terminal() => return Ok(Some(Turn::Over)),
                Ok(TaskState::Pending | TaskState::Running) => return Ok(Some(Turn::Next)),
                // A worker makes it pending when it is due, and returns the executions that run meanwhile.
                Ok(TaskState::Scheduled) => {
                    tokio::time::sleep(interval).await;
                    return Ok(Some(Turn::Next));
                }
                Err(error) if !error.is_retryable() => return Err(error),
                Ok(_) | Err(_) => {}
            }
            if display.is_due()
                && let Ok(Ok(state)) =
                    tokio::time::timeout(READ_TIMEOUT, turn_state(workflows, name, id)).await
            {
                display.show(&state);
            }
            tokio::time::sleep(interval).await;
            Ok(None)
        };
        tokio::select! {
            biased;
            signal = signals.next() => {
                abort_if_not_started(workflows, id, by).await?;
                return Ok(Turn::Signal(signal));
            }
            turn = turn => {
                if let Some(turn) = turn? {
                    return Ok(turn);
                }
            }
        }
    }
}

/// Returns the holder of the workflow's lock, and the position of an execution in its queue.
async fn turn_state(workflows: &Workflows, name: &WorkflowName, id: ExecutionId) -> Result<WaitState, Error> {
    let lock = workflows.lock(name).await?;
    let query = ListExecutions::default().workflow(name.clone()).state(TaskState::Blocked).limit(LISTED);
    let queued = workflows.executions(&query).await?.items;
    // The newest is first in the list, and last in the queue.
    let position = queued.iter().rev().position(|execution| execution.id == id).map(|ahead| ahead + 1);
    let holder = lock.holder.map(|holder| holder.to_string()).or(lock.execution_id.map(|id| id.to_string()));
    Ok(WaitState {
        what: format!("workflow '{name}'"),
        grant: holder.clone().unwrap_or_default(),
        holder,
        held_for: lock.locked_since.map(|since| lock.now.since(since)),
        position: position.filter(|_| queued.len() < LISTED as usize),
        waiters: usize::try_from(lock.queued).unwrap_or_default(),
        ..WaitState::default()
    })
}

/// Aborts an execution that has not started, because no other process may be there to run it.
/// Returns its current state.
async fn abort_if_not_started(
    workflows: &Workflows,
    id: ExecutionId,
    by: &Holder,
) -> Result<Execution, Failure> {
    let has_started = |execution: &Execution| {
        !matches!(execution.state, TaskState::Pending | TaskState::Blocked | TaskState::Scheduled)
    };
    let execution = workflows.get(id).await?;
    if has_started(&execution) {
        return Ok(execution);
    }
    let reason = Reason::new("the runner exited before the execution started")?;
    match workflows.abort(id, by.clone(), Some(reason)).await {
        Err(Error::ExecutionFinished { .. }) => Ok(workflows.get(id).await?),
        // Another worker may have begun to run it: then only an operator may abort it.
        Err(error) if error.is_not_permitted() => {
            let execution = workflows.get(id).await?;
            if has_started(&execution) { Ok(execution) } else { Err(error.into()) }
        }
        aborted => Ok(aborted?),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use axum::extract::{Request, State};
    use axum::http::StatusCode;
    use axum::middleware::{Next, from_fn_with_state};
    use axum::response::{IntoResponse, Response};
    use leasehold::model::Timestamp;
    use leasehold_server::access::TokenStore;
    use leasehold_server::{Access, Role, Server};

    use super::*;

    const TTL: Ttl = Ttl::from_millis(600);

    /// Proxy between a client with the role worker and its server.
    #[derive(Clone)]
    struct Proxy {
        /// The server's store.
        leasehold: Leasehold,
        /// Number of changes of tasks to refuse.
        refusals: Arc<AtomicU32>,
        /// Whether another worker takes the execution before each change of a task.
        takes: bool,
    }

    impl Proxy {
        async fn new(refusals: u32, takes: bool) -> Self {
            let leasehold = Leasehold::connect("memory:").await.unwrap();
            Self { leasehold, refusals: Arc::new(AtomicU32::new(refusals)), takes }
        }

        async fn pass(State(proxy): State<Self>, request: Request, next: Next) -> Response {
            if request.uri().path().ends_with("/tasks/change") {
                let refused = proxy
                    .refusals
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
                if refused.is_ok() {
                    return StatusCode::FORBIDDEN.into_response();
                }
                if proxy.takes {
                    proxy.leasehold.workflows().unwrap().take(&[deploy()], Capabilities::TTL).await.unwrap();
                }
            }
            next.run(request).await
        }

        /// Starts an execution through the proxy.
        async fn start(&self) -> (Workflows, ExecutionId) {
            let tokens = TokenStore::new(self.leasehold.clone());
            let token = tokens.create("ci", Role::Worker, None).await.unwrap().text;
            let builder = Server::builder(self.leasehold.clone()).access(Access::Tokens(Vec::new()));
            let router = builder.without_maintenance().build().router();
            let router = router.layer(from_fn_with_state(self.clone(), Self::pass));
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{token}@{}", listener.local_addr().unwrap());
            tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
            let client = Leasehold::connect(&url).await.unwrap();
            let started = client.workflow(deploy()).runner_ttl(Duration::from_hours(1)).start("v1").await;
            (client.workflows().unwrap(), started.unwrap().execution().unwrap().id)
        }

        async fn deadline(&self, id: ExecutionId) -> Timestamp {
            let store = self.leasehold.store();
            store.tasks().unwrap().get(id.task()).await.unwrap().unwrap().runner_deadline.unwrap()
        }
    }

    fn deploy() -> WorkflowName {
        WorkflowName::new("deploy").unwrap()
    }

    fn ada() -> Holder {
        Holder::new("ada@laptop").unwrap()
    }

    #[tokio::test]
    async fn a_runner_that_is_refused_tries_again() {
        let proxy = Proxy::new(2, false).await;
        let (workflows, id) = proxy.start().await;
        let before = proxy.deadline(id).await;
        let _heartbeat = RunnerHeartbeat::start(workflows, id, TTL);
        let renewed = async {
            while proxy.deadline(id).await == before {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(2), renewed).await.expect("the third attempt succeeds");
        assert_eq!(proxy.refusals.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn an_execution_that_another_worker_begins_meanwhile_is_not_aborted() {
        let proxy = Proxy::new(0, true).await;
        let (workflows, id) = proxy.start().await;
        let execution = abort_if_not_started(&workflows, id, &ada()).await.unwrap();
        assert_eq!(execution.state, TaskState::Running);
        assert_eq!(execution.cancel_requested_by, None);
    }

    #[tokio::test]
    async fn a_refused_abort_of_an_execution_that_has_not_started_is_an_error() {
        let proxy = Proxy::new(1, false).await;
        let (workflows, id) = proxy.start().await;
        assert!(abort_if_not_started(&workflows, id, &ada()).await.is_err());
        let aborted = abort_if_not_started(&workflows, id, &ada()).await.unwrap();
        assert_eq!(aborted.state, TaskState::Aborted);
    }
}
