//! Commands of workflows: a worker of the client library takes executions, and each runs once under
//! a monitor of its own.

use std::sync::Arc;

use leasehold::model::{ExecutionId, ExecutionInput, Payload, Ttl, WorkflowName};
use leasehold::{HandlerError, Leasehold, TaskContext, Worker};

use super::attempt::{PayloadFolder, outcome, unless_given_up};
use super::context::{KEPT_OUTPUT, ShutdownMode, WorkerContext};
use super::outcome::Outcome;
use super::output::LineFormat;
use crate::output::{Failure, Printer};
use crate::run::{Launcher, MonitorPool};

pub(crate) struct ExecutionPlan {
    pub(crate) workflow: WorkflowName,
    pub(crate) ttl: Ttl,
    pub(crate) launcher: Launcher,
}

pub(crate) struct Executions {
    worker: Worker,
    context: Arc<ExecutionContext>,
    reaper: tokio::task::JoinHandle<()>,
}

struct ExecutionContext {
    worker: WorkerContext,
    payloads: PayloadFolder,
}

impl Executions {
    pub(crate) fn start(
        leasehold: &Leasehold,
        plans: Vec<ExecutionPlan>,
        pool: Arc<MonitorPool>,
        printer: Printer,
    ) -> Result<Self, Failure> {
        let payloads = PayloadFolder::new().map_err(Failure::internal)?;
        let worker = WorkerContext::to_stderr(printer).keep_output(leasehold.tasks()?, KEPT_OUTPUT);
        let context = Arc::new(ExecutionContext { worker, payloads });
        // Each workflow runs one execution at a time, so this gives every workflow a slot.
        let slots = u32::try_from(plans.len()).unwrap_or(u32::MAX);
        let mut builder = leasehold.worker().slots(slots).prefetch(0).cooperative_cancellation();
        for ExecutionPlan { workflow, ttl, launcher } in plans {
            let (context, launcher) = (context.clone(), Arc::new(launcher));
            builder = builder.workflow_raw(workflow, ttl.as_duration(), move |running| {
                execute(context.clone(), launcher.clone(), running)
            });
        }
        let worker = builder.start()?;
        let reaper = tokio::spawn(async move {
            if let Err(error) = pool.reap().await {
                tracing::error!(%error, "dead processes cannot be reaped");
            }
        });
        Ok(Self { worker, context, reaper })
    }

    /// Returns a function that kills the running executions immediately.
    pub(crate) fn kill(&self) -> impl Fn() + use<> {
        let context = self.context.clone();
        move || _ = context.worker.shutdown.send_replace(ShutdownMode::Kill)
    }

    /// Takes no further executions, and waits for the running ones; when `deadline` resolves they are
    /// stopped. Returns after all output has been written; the reader of the output is waited for until a
    /// moment after `deadline`.
    pub(crate) async fn stop(self, deadline: impl Future<Output = ()>) {
        let mut deadline = std::pin::pin!(deadline);
        let mut is_over = false;
        let grace = async {
            deadline.as_mut().await;
            is_over = true;
        };
        self.worker.stop_when(grace).await;
        self.reaper.abort();
        let rest = async {
            if !is_over {
                deadline.await;
            }
        };
        self.context.worker.close_output(rest).await;
    }
}

/// Runs one execution: the command runs until it ends by itself or is stopped.
async fn execute(
    context: Arc<ExecutionContext>,
    launcher: Arc<Launcher>,
    running: TaskContext<ExecutionInput>,
) -> Result<Option<Payload>, HandlerError> {
    let id = ExecutionId::from(running.id());
    let workflow = WorkflowName::of_queue(&running.task().queue);
    let workflow = workflow.map_or_else(String::new, |name| name.to_string());
    tracing::info!(execution = %id, %workflow, "started");
    let format = LineFormat::Prefixed(format!("{workflow} {id}: "));
    let payload = running.payload.bytes();
    let outcome = match context.payloads.put(id, payload) {
        Ok(file) => {
            let (task, lock_token, valid_until) =
                (running.task(), running.lock_token(), running.valid_until());
            let launch = launcher.launch_execution(task, lock_token, payload, file.path(), valid_until);
            outcome(&context.worker, &running, launch, &format).await
        }
        Err(error) => Outcome::not_started(running.task(), &error),
    };
    if let Some(error) = &outcome.error {
        let message = context.worker.message(format!("{id} of workflow '{workflow}': {error}"));
        unless_given_up(&context.worker, &running, message).await;
    }
    outcome.result
}
