//! `workflows list`, `status`, `run`; `executions list`, `show`, `abort`.

use std::time::Duration;

use leasehold::model::{ExecutionId, Holder, Input, Reason, TaskState, Ttl, WorkflowName};
use leasehold::store::StoreUrl;
use leasehold::{Error, Execution, Leasehold, ListExecutions, Start, Workflows};

use super::dispatch::{Desk, Done, block_on};
use super::tasks::read_payload;
use crate::cli::{AbortArgs, ExecutionsCommand, ListExecutionsArgs, RunWorkflowArgs, WorkflowsCommand};
use crate::config::{Choice, containment};
use crate::exit;
use crate::identity::Identity;
use crate::output::{
    Failure, Printer, WorkflowView, execution_page, execution_table, workflow_page, workflow_table,
};
use crate::run::{Launcher, WorkerCommand};
use crate::work::{Signals, Until, WorkPlan, work};

pub(super) async fn workflows(desk: &Desk, command: WorkflowsCommand) -> Done {
    match command {
        WorkflowsCommand::List => list(desk).await,
        WorkflowsCommand::Status { workflow } => status(desk, &workflow).await,
        // It makes a runtime of its own, and has been served.
        WorkflowsCommand::Run(_) => Ok(exit::SUCCESS),
    }
}

pub(super) async fn executions(desk: &Desk, command: ExecutionsCommand) -> Done {
    match command {
        ExecutionsCommand::List(args) => list_executions(desk, args).await,
        ExecutionsCommand::Show { id } => show(desk, id).await,
        ExecutionsCommand::Abort(args) => abort(desk, args).await,
    }
}

async fn list(desk: &Desk) -> Done {
    let workflows = desk.open().await?.workflows()?.list().await?;
    let views: Vec<_> = workflows.iter().map(WorkflowView::from).collect();
    desk.printer.result(&views, |paint| {
        if workflows.is_empty() { String::new() } else { workflow_table(&workflows, paint) }
    })?;
    if workflows.is_empty() {
        desk.printer.say("there is no workflow yet: it comes into being with its first execution");
    }
    Ok(exit::SUCCESS)
}

async fn status(desk: &Desk, workflow: &WorkflowName) -> Done {
    let lock = desk.open().await?.workflows()?.lock(workflow).await?;
    desk.printer.result(&lock, |paint| workflow_page(&lock, paint))?;
    Ok(exit::SUCCESS)
}

async fn list_executions(desk: &Desk, args: ListExecutionsArgs) -> Done {
    let leasehold = desk.open().await?;
    let workflows = leasehold.workflows()?;
    let most = args.limit as usize;
    let limit = args.limit.saturating_add(1);
    let mut ask = ListExecutions { workflow: args.workflow, state: args.state, after: None, limit };
    let mut found: Vec<Execution> = Vec::new();
    loop {
        let page = workflows.executions(&ask).await?;
        found.extend(page.items);
        ask.after = page.next;
        if ask.after.is_none() || found.len() > most {
            break;
        }
    }
    let more = found.len() > most;
    found.truncate(most);
    let now = leasehold.now().await?;
    desk.printer.result(&found, |paint| {
        if found.is_empty() { String::new() } else { execution_table(&found, now, paint) }
    })?;
    if found.is_empty() {
        desk.printer.say("no such execution");
    }
    if more {
        desk.printer.say("there are more; raise --limit");
    }
    Ok(exit::SUCCESS)
}

async fn show(desk: &Desk, id: ExecutionId) -> Done {
    let leasehold = desk.open().await?;
    let execution = leasehold.workflows()?.get(id).await?;
    let now = leasehold.now().await?;
    desk.printer.result(&execution, |paint| execution_page(&execution, now, paint))?;
    Ok(exit::SUCCESS)
}

/// One that fails does not keep the others from it; the exit code is that of the first.
async fn abort(desk: &Desk, args: AbortArgs) -> Done {
    let workflows = desk.open().await?.workflows()?;
    let by = Identity::here().person()?;
    let (mut aborted, mut failed) = (Vec::new(), None);
    for id in args.ids {
        match workflows.abort(id, by.clone(), args.reason.clone()).await {
            Ok(execution) => aborted.push(execution),
            Err(error) => {
                let failure = Failure::from(error);
                failure.print(desk.printer.json);
                failed.get_or_insert(failure.exit);
            }
        }
    }
    desk.printer.result(&aborted, |_| aborted.iter().map(stands).collect())?;
    Ok(failed.unwrap_or(exit::SUCCESS))
}

fn stands(execution: &Execution) -> String {
    let running = execution.state == TaskState::Running;
    let word = if running { "to be stopped".to_owned() } else { execution.state.to_string() };
    format!("{}  {word}\n", execution.id)
}

/// So often one that waits for its turn looks whether that has come.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// To be called while this process has one thread.
pub(super) fn run(args: RunWorkflowArgs, store: &Choice, printer: Printer) -> Done {
    StoreUrl::parse(&store.url)?;
    let store_url = store.absolute();
    let input = Input::Json(read_payload(args.input)?);
    let launcher = Launcher::new(WorkerCommand {
        command: args.command,
        store_url: store_url.clone(),
        ttl: args.ttl.as_duration(),
        kill_after: args.kill_after,
        contain: containment(args.contain)?,
    })?;
    let by = Identity::here().person()?;
    block_on(async move {
        let leasehold = Leasehold::connect(&store_url).await?;
        if !leasehold.abilities().lasting {
            let wrong = format!("an execution in the store {} would end with this command", leasehold.url());
            return Err(Failure::config(wrong).hint("use a store that lasts, such as sqlite:"));
        }
        let queue = args.workflow.queue();
        let mut start =
            leasehold.workflow(args.workflow).on_locked(args.on_locked.0).reuse(args.reuse.into());
        // If this process is killed while it waits, the execution is in nobody's way.
        start = start.wanted(args.ttl.as_duration());
        if let Some(key) = args.key {
            start = start.key(key);
        }
        if let Some(longest) = args.max_runtime {
            start = start.max_runtime(longest);
        }
        // From here on there is something to be taken back.
        let mut signals = Signals::listen().map_err(Failure::internal)?;
        let id = match start.start_with(input).await? {
            Start::Started(execution) | Start::Queued(execution) => execution.id,
            Start::Duplicate(execution) => {
                printer.say(format_args!("leasehold: that was {}: {}", execution.id, execution.state));
                return Ok(match execution.state {
                    TaskState::Succeeded => exit::SUCCESS,
                    TaskState::Failed | TaskState::Aborted => exit::DUPLICATE_FAILED,
                    _ => exit::DUPLICATE_OPEN,
                });
            }
            Start::Skipped { reason, .. } => {
                printer.say(format_args!("leasehold: skipped: {reason}"));
                return Ok(exit::SUCCESS);
            }
        };
        let workflows = leasehold.workflows()?;
        printer.advise(format_args!("leasehold: execution {id}"));
        let _still_there = StillThere::say(workflows.clone(), id, args.ttl);
        if let Some(signal) = wait_for_turn(&workflows, id, &by, &mut signals).await? {
            return Ok(exit::SIGNAL_BASE + signal);
        }
        let plan = WorkPlan {
            store_url,
            queues: vec![queue],
            slots: 1,
            ttl: Some(args.ttl),
            kill_after: args.kill_after,
            grace: args.grace,
            until: Until::Execution(id),
            launcher,
        };
        let code = work(plan, printer).await?;
        let execution = give_up(&workflows, id, &by).await?;
        match (code, execution.state) {
            (exit::SUCCESS, TaskState::Succeeded) => Ok(exit::SUCCESS),
            (exit::SUCCESS, state) => {
                let why = execution.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
                printer.say(format_args!("leasehold: {id} has {state}{why}"));
                Ok(exit::FAILURE)
            }
            (code, _) => Ok(code),
        }
    })
}

/// Says that this process still waits for its execution, until it is dropped.
struct StillThere(tokio::task::JoinHandle<()>);

impl StillThere {
    fn say(workflows: Workflows, id: ExecutionId, ttl: Ttl) -> Self {
        Self(tokio::spawn(async move {
            let every = ttl.as_duration() / 3;
            let mut pause = every;
            loop {
                tokio::time::sleep(pause).await;
                pause = match workflows.want(id, ttl).await {
                    Ok(_) => every,
                    Err(error) if error.is_retryable() => (every / 5).min(Duration::from_secs(1)),
                    // It is over.
                    Err(_) => return,
                };
            }
        }))
    }
}

impl Drop for StillThere {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Waits until the execution is the next to run, or over. Whoever is asked to end before that takes it out of the line: the
/// signal is given.
async fn wait_for_turn(
    workflows: &Workflows,
    id: ExecutionId,
    by: &Holder,
    signals: &mut Signals,
) -> Result<Option<i32>, Failure> {
    loop {
        let turn = async {
            match workflows.get(id).await {
                Ok(execution) if execution.state != TaskState::Blocked => return Ok(true),
                Err(error) if !error.is_retryable() => return Err(error),
                Ok(_) | Err(_) => {}
            }
            tokio::time::sleep(LOOK_EVERY).await;
            Ok(false)
        };
        tokio::select! {
            biased;
            signal = signals.next() => {
                give_up(workflows, id, by).await?;
                return Ok(Some(signal));
            }
            turn = turn => {
                if turn? {
                    return Ok(None);
                }
            }
        }
    }
}

/// What has not begun will not begin: nobody else may be there to run it. Gives it as it stands.
async fn give_up(workflows: &Workflows, id: ExecutionId, by: &Holder) -> Result<Execution, Failure> {
    let execution = workflows.get(id).await?;
    if !matches!(execution.state, TaskState::Pending | TaskState::Blocked | TaskState::Scheduled) {
        return Ok(execution);
    }
    let reason = Reason::new("its runner ended before it began")?;
    match workflows.abort(id, by.clone(), Some(reason)).await {
        Err(Error::ExecutionFinished { .. }) => Ok(workflows.get(id).await?),
        aborted => Ok(aborted?),
    }
}
