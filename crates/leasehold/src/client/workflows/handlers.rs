//! Handlers of workflows in a worker.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::tasks::{Handler, HandlerError, TaskContext, WorkerBuilder, attempt_result};
use crate::error::{Error, Result};
use crate::model::{
    AttemptResult, ExecutionInput, ExecutionSpec, Message, Ttl, ValidationError, WorkflowName,
};

impl WorkerBuilder {
    /// Handles the executions of a workflow: [`TaskContext::work`] is the input. The worker holds
    /// the workflow's lock while the handler runs. If the handler fails, the execution fails: a
    /// retry is a new execution. If the worker stops before the handler is done, the execution is
    /// aborted.
    pub fn workflow<N, I, R, F, Fut>(self, name: N, ttl: Duration, handler: F) -> Self
    where
        N: TryInto<WorkflowName>,
        N::Error: Into<Error>,
        I: DeserializeOwned + Send + 'static,
        R: Serialize + Send,
        F: Fn(TaskContext<I>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        self.with_workflow(name, ttl, |input| input.read::<I>(), handler)
    }

    /// Handles the executions of a workflow with the unchanged bytes that they were started with.
    pub fn workflow_raw<N, R, F, Fut>(self, name: N, ttl: Duration, handler: F) -> Self
    where
        N: TryInto<WorkflowName>,
        N::Error: Into<Error>,
        R: Serialize + Send,
        F: Fn(TaskContext<ExecutionInput>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        self.with_workflow(name, ttl, |input| Ok(input.clone()), handler)
    }

    fn with_workflow<N, I, R, F, Fut>(
        self,
        name: N,
        ttl: Duration,
        read: fn(&ExecutionInput) -> Result<I, ValidationError>,
        handler: F,
    ) -> Self
    where
        N: TryInto<WorkflowName>,
        N::Error: Into<Error>,
        I: Send + 'static,
        R: Serialize + Send,
        F: Fn(TaskContext<I>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let call: Box<Handler> = Box::new(move |task, lock_token, channels| {
            let handler = handler.clone();
            Box::pin(async move {
                match read(&ExecutionSpec::of(&task).input) {
                    Ok(input) => {
                        attempt_result(handler(TaskContext::new(input, task, lock_token, channels)).await)
                    }
                    Err(error) => {
                        let kind = std::any::type_name::<I>();
                        AttemptResult::Fail(Message::new(format!(
                            "the input cannot be read as {kind}: {error}"
                        )))
                    }
                }
            })
        });
        match (name.try_into(), Ttl::new(ttl)) {
            (Ok(name), Ok(ttl)) => self.with_handler(name.queue(), ttl, call),
            (Err(error), _) => self.record_error(error),
            (_, Err(error)) => self.record_error(error),
        }
    }
}
