//! Commands of workflows: a worker of the client library takes executions, and each runs once under
//! a keeper of its own.

use std::sync::Arc;

use leasehold::model::{ExecutionId, Input, Payload, Ttl, WorkflowName};
use leasehold::{HandlerError, Leasehold, TaskContext, Worker};

use super::attempt::listen;
use super::capture::Form;
use super::outcome::Outcome;
use super::payload::PayloadFolder;
use super::shop::{Hurry, Shop};
use crate::output::{Failure, Printer};
use crate::run::{Crew, ExecutionStart, Launcher};

/// Parameters for running the executions of a workflow.
pub(crate) struct ExecutionPlan {
    pub(crate) workflow: WorkflowName,
    pub(crate) ttl: Ttl,
    pub(crate) launcher: Launcher,
}

/// Executions that this process runs.
pub(crate) struct Executions {
    worker: Worker,
    kitchen: Arc<Kitchen>,
    burying: tokio::task::JoinHandle<()>,
}

/// State that all executions share.
struct Kitchen {
    shop: Shop,
    payloads: PayloadFolder,
}

impl Executions {
    /// Starts to take and run executions.
    pub(crate) fn start(
        leasehold: &Leasehold,
        plans: Vec<ExecutionPlan>,
        crew: Arc<Crew>,
        printer: Printer,
    ) -> Result<Self, Failure> {
        let payloads = PayloadFolder::new().map_err(Failure::internal)?;
        let kitchen = Arc::new(Kitchen { shop: Shop::talking(printer), payloads });
        // Each workflow runs one execution at a time, so this gives every workflow a slot.
        let slots = u32::try_from(plans.len()).unwrap_or(u32::MAX);
        let mut builder = leasehold.worker().slots(slots).prefetch(0).patient();
        for ExecutionPlan { workflow, ttl, launcher } in plans {
            let (kitchen, launcher) = (kitchen.clone(), Arc::new(launcher));
            builder = builder.workflow_raw(workflow, ttl.as_duration(), move |running| {
                execute(kitchen.clone(), launcher.clone(), running)
            });
        }
        let worker = builder.start()?;
        let burying = tokio::spawn(async move {
            if let Err(error) = crew.bury().await {
                tracing::error!(%error, "what is dead cannot be buried");
            }
        });
        Ok(Self { worker, kitchen, burying })
    }

    /// Returns a function that kills the running executions immediately.
    pub(crate) fn kill(&self) -> impl Fn() + use<> {
        let kitchen = self.kitchen.clone();
        move || _ = kitchen.shop.hurry.send_replace(Hurry::Kill)
    }

    /// Takes no further executions, and waits for the running ones; when `enough` resolves they are
    /// stopped. Returns after all output has been written.
    pub(crate) async fn stop(self, enough: impl Future<Output = ()>) {
        self.worker.stop_when(enough).await;
        self.burying.abort();
        let mouth = self.kitchen.shop.stderr.clone();
        let _ = tokio::task::spawn_blocking(move || mouth.close()).await;
    }
}

/// Runs one execution: the command runs until it ends by itself or is stopped.
async fn execute(
    kitchen: Arc<Kitchen>,
    launcher: Arc<Launcher>,
    running: TaskContext<Input>,
) -> Result<Option<Payload>, HandlerError> {
    let id = ExecutionId::from(running.id());
    let workflow = WorkflowName::of_queue(&running.task().queue);
    let workflow = workflow.map_or_else(String::new, |name| name.to_string());
    tracing::info!(execution = %id, %workflow, "begun");
    let form = Form::Prefixed(format!("{workflow} {id}: "));
    let outcome = run(&kitchen, &launcher, &running, &form).await;
    if let Some(trouble) = &outcome.trouble {
        kitchen.shop.say(format!("{id} of workflow '{workflow}': {trouble}")).await;
    }
    outcome.result
}

async fn run(kitchen: &Kitchen, launcher: &Launcher, running: &TaskContext<Input>, form: &Form) -> Outcome {
    let payload = running.work.bytes();
    let file = match kitchen.payloads.put(running.id().into(), payload) {
        Ok(file) => file,
        Err(error) => return Outcome::not_started(running.task(), &error),
    };
    let start = ExecutionStart {
        task: running.task(),
        lock_token: running.lock_token(),
        payload: payload.to_vec(),
        payload_file: file.path(),
    };
    let begun = launcher.launch_execution(start, running.valid_until()).await;
    match listen(&kitchen.shop, begun, form) {
        Ok(heard) => {
            let (end, out, error) = heard.until_the_end(&kitchen.shop, running).await;
            Outcome::new(end, running.task(), kitchen.shop.is_hurried(), out, error)
        }
        Err(error) => Outcome::not_started(running.task(), &error),
    }
}
