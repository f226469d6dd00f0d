//! Workflow executions. An execution is a task of the queue `workflow/NAME`, under the lock of the
//! same name, with an [`ExecutionSpec`] as its payload.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Fingerprint, NewTask, Payload, Task, TaskId};
use crate::lock::request::is_default;
use crate::name::WORKFLOW;
use crate::{
    DeliveryId, EventName, Holder, LockName, Metadata, QueueName, TaskKey, TriggerId, Ttl, ValidationError,
    ValueKind, WorkflowName,
};

const EXECUTION: &str = "exec_";

impl WorkflowName {
    /// Prefix of the queues and locks of all workflows.
    pub const PREFIX: &'static str = WORKFLOW;

    /// Returns the queue of the workflow's executions.
    pub fn queue(&self) -> QueueName {
        QueueName::new(format!("{WORKFLOW}{self}")).expect("a workflow's name is short enough")
    }

    /// Returns the lock under which the executions run.
    pub fn lock(&self) -> LockName {
        LockName::new(format!("{WORKFLOW}{self}")).expect("a workflow's name is short enough")
    }

    /// Returns the workflow of this queue, if the queue belongs to one.
    pub fn of_queue(queue: &QueueName) -> Option<Self> {
        queue.as_str().strip_prefix(WORKFLOW).and_then(|name| Self::new(name).ok())
    }

    /// Returns the workflow of this lock, if the lock belongs to one.
    pub fn of_lock(lock: &LockName) -> Option<Self> {
        lock.as_str().strip_prefix(WORKFLOW).and_then(|name| Self::new(name).ok())
    }
}

impl NewTask {
    /// Gives a task in the queue of a workflow the lock of the workflow, and a single attempt: each task of such
    /// a queue is run as an execution. Rejects another lock.
    pub fn as_execution(mut self) -> Result<Self, ValidationError> {
        let Some(workflow) = WorkflowName::of_queue(&self.queue) else { return Ok(self) };
        let lock = workflow.lock();
        if let Some(other) = self.lock.take().filter(|other| *other != lock) {
            let message =
                format!("a task in queue '{}' runs under the lock '{lock}', not under '{other}'", self.queue);
            return Err(ValidationError::other(message));
        }
        self.lock = Some(lock);
        self.retries.attempts = 1;
        Ok(self)
    }
}

impl Task {
    /// Returns the lock that a worker holds while the task runs. Earlier releases could add tasks without a lock
    /// to the queue of a workflow.
    pub fn required_lock(&self) -> Option<LockName> {
        self.lock.clone().or_else(|| WorkflowName::of_queue(&self.queue).map(|workflow| workflow.lock()))
    }
}

/// Id of an execution of a workflow: `exec_` and the id of its task. The execution holds the
/// workflow's lock under this name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExecutionId(TaskId);

impl ExecutionId {
    /// Returns the id of the execution's task.
    pub const fn task(self) -> TaskId {
        self.0
    }

    /// Returns the execution as the holder of a lock.
    pub fn holder(self) -> Holder {
        Holder::new(self.to_string()).expect("an execution's id is short")
    }

    /// Returns the execution that this holder denotes, if it denotes one.
    pub fn of_holder(holder: &Holder) -> Option<Self> {
        holder.as_str().starts_with(EXECUTION).then(|| holder.as_str().parse().ok()).flatten()
    }

    /// Returns the execution of this task, if the task is one.
    pub fn of_task(task: &Task) -> Option<Self> {
        WorkflowName::of_queue(&task.queue).map(|_| Self(task.id))
    }
}

impl From<TaskId> for ExecutionId {
    fn from(task: TaskId) -> Self {
        Self(task)
    }
}

impl fmt::Display for ExecutionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{EXECUTION}{}", self.0))
    }
}

impl fmt::Debug for ExecutionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Parses an id with or without the prefix `exec_`.
impl FromStr for ExecutionId {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        let id = text.strip_prefix(EXECUTION).unwrap_or(text);
        let wrong = |_| {
            ValidationError::new(
                ValueKind::Id,
                format!("'{text}' is not an execution id; an execution id is {EXECUTION} and a UUID"),
            )
        };
        id.parse().map(Self).map_err(wrong)
    }
}

impl TryFrom<String> for ExecutionId {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        text.parse()
    }
}

impl From<ExecutionId> for String {
    fn from(id: ExecutionId) -> String {
        id.to_string()
    }
}

/// Specification of an execution: the payload of its task.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExecutionSpec {
    /// Input that the execution was started with.
    pub input: ExecutionInput,
    /// Number of the attempt with the same key, from 1.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub attempt: u32,
    /// Failed execution whose key this one has taken over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<ExecutionId>,
    /// Maximum run time, after which the execution is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runtime: Option<Ttl>,
    /// Key that the execution was started with. The task itself has the key only until a later
    /// execution reuses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<TaskKey>,
    /// Metadata of the start: the caller, under [`ExecutionSpec::STARTED_BY`], and the entries that
    /// the caller added. Earlier builds have stored them as `facts`.
    #[serde(default, skip_serializing_if = "is_default", alias = "facts")]
    pub metadata: Metadata,
}

impl ExecutionSpec {
    /// Metadata key of the caller that started the execution.
    pub const STARTED_BY: &'static str = "startedBy";

    /// Creates the specification of a first attempt without a limit on its run time.
    pub fn new(input: ExecutionInput) -> Self {
        Self {
            input,
            attempt: 1,
            retry_of: None,
            max_runtime: None,
            key: None,
            metadata: Metadata::default(),
        }
    }

    /// Returns the caller that started the execution, if known.
    pub fn started_by(&self) -> Option<&str> {
        self.metadata.get(Self::STARTED_BY)
    }

    /// Returns the specification of an execution. A task that was not added as an execution has
    /// only an input.
    pub fn of(task: &Task) -> Self {
        task.payload.read().unwrap_or_else(|_| Self::new(ExecutionInput::Json(task.payload.clone())))
    }
}

fn first() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's shape")]
fn is_first(attempt: &u32) -> bool {
    *attempt == 1
}

/// Input of an execution, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionInput {
    /// A JSON value.
    Json(Payload),
    /// Any other text.
    Text(Arc<str>),
}

impl ExecutionInput {
    /// Creates an input from any value that serializes to JSON.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, ValidationError> {
        Payload::of(value).map(Self::Json)
    }

    /// Creates an input from raw bytes, such as the body of a request: JSON, or otherwise a text.
    pub fn raw(bytes: &[u8]) -> Result<Self, ValidationError> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            ValidationError::new(ValueKind::Payload, format!("the input is neither JSON nor a text: {error}"))
        })?;
        // Blanks around a JSON value would be lost.
        match Payload::new(text) {
            Ok(json) if text.trim() == text => Ok(Self::Json(json)),
            _ => Ok(Self::Text(text.into())),
        }
    }

    /// Returns the bytes of the input.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Json(json) => json.as_str().as_bytes(),
            Self::Text(text) => text.as_bytes(),
        }
    }

    /// Deserializes the value.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, ValidationError> {
        match self {
            Self::Json(json) => json.read(),
            Self::Text(text) => serde_json::from_str(text)
                .map_err(|error| ValidationError::new(ValueKind::Payload, error.to_string())),
        }
    }

    /// Returns the fingerprint of the input; equal for JSON texts with the same canonical form.
    pub fn fingerprint(&self) -> Fingerprint {
        match self {
            Self::Json(json) => json.fingerprint(),
            Self::Text(text) => Fingerprint::of(text.as_bytes()),
        }
    }
}

const TRIGGER: &str = "webhookTrigger";
const EVENT: &str = "webhookEvent";
const DELIVERY: &str = "webhookDelivery";

/// Webhook delivery that started an execution. It is stored in the metadata of the execution's spec, so
/// that every process that runs the execution has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WebhookEvent {
    /// Trigger that received the delivery.
    pub trigger: TriggerId,
    /// Kind of the event, if the sender names it: `push`, `pull_request.opened`, `invoice.paid`.
    pub event: Option<EventName>,
    /// Sender's id of the delivery, if the delivery has one.
    pub delivery: Option<DeliveryId>,
}

impl WebhookEvent {
    /// Returns the delivery that this metadata of an execution describes, if it describes one. A
    /// value that its type rejects is omitted: it could not be passed on in the environment of a command.
    pub fn of(metadata: &Metadata) -> Option<Self> {
        let trigger = metadata.get(TRIGGER).and_then(|text| TriggerId::new(text).ok())?;
        let event = metadata.get(EVENT).and_then(|text| EventName::new(text).ok());
        let delivery = metadata.get(DELIVERY).and_then(|text| DeliveryId::new(text).ok());
        Some(Self { trigger, event, delivery })
    }

    /// Returns the metadata entries that describe the delivery.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let event = self.event.as_ref().map(|event| (EVENT, event.as_str()));
        let delivery = self.delivery.as_ref().map(|delivery| (DELIVERY, delivery.as_str()));
        std::iter::once((TRIGGER, self.trigger.as_str())).chain(event).chain(delivery)
    }

    /// Returns whether a metadata entry of this name belongs to a webhook. Only the triggers of a
    /// server set such entries.
    pub fn is_entry(name: &str) -> bool {
        [TRIGGER, EVENT, DELIVERY].contains(&name)
    }

    /// Returns the metadata entries of a webhook in this payload of an execution, with any value. A
    /// payload of another kind of task has none.
    pub fn entries_in(payload: &Payload) -> Vec<(String, String)> {
        let Ok(spec) = payload.read::<ExecutionSpec>() else { return Vec::new() };
        let entries = spec.metadata.iter().filter(|(name, _)| Self::is_entry(name));
        entries.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_workflow_is_known_by_its_queue_and_its_lock() {
        let name = WorkflowName::new("deploy/prod").unwrap();
        assert_eq!(
            (name.queue().as_str(), name.lock().as_str()),
            ("workflow/deploy/prod", "workflow/deploy/prod")
        );
        assert_eq!(WorkflowName::of_queue(&name.queue()), Some(name.clone()));
        assert_eq!(WorkflowName::of_lock(&name.lock()), Some(name));
        assert_eq!(WorkflowName::of_queue(&QueueName::new("mail").unwrap()), None);
        let longest = WorkflowName::new("x".repeat(246)).unwrap();
        assert_eq!(longest.lock().as_str().len(), 255);
        assert!(WorkflowName::new("x".repeat(247)).is_err());
    }

    #[test]
    fn an_execution_has_one_name_everywhere() {
        let id = ExecutionId::from(TaskId::from_uuid(Uuid::from_u128(5)));
        let text = "exec_00000000-0000-0000-0000-000000000005";
        assert_eq!(id.to_string(), text);
        assert_eq!((text.parse().ok(), text[5..].parse().ok()), (Some(id), Some(id)));
        assert_eq!(ExecutionId::of_holder(&id.holder()), Some(id));
        assert_eq!(ExecutionId::of_holder(&Holder::new(&text[5..]).unwrap()), None);
        assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{text}\""));
        assert!("exec_1".parse::<ExecutionId>().unwrap_err().to_string().contains("exec_ and a UUID"));
    }

    #[test]
    fn an_input_is_kept_byte_for_byte() {
        for bytes in ["{\"a\":  1.10}", " {\"a\":1}\n", "a=1&b=2", "", "\"\\u0000\""] {
            let spec = ExecutionSpec::new(ExecutionInput::raw(bytes.as_bytes()).unwrap());
            let stored = Payload::of(&spec).unwrap();
            let read: ExecutionSpec = stored.read().unwrap();
            assert_eq!(read, spec);
            assert_eq!(read.input.bytes(), bytes.as_bytes());
        }
        assert!(ExecutionInput::raw(&[0xff]).is_err());
    }

    /// Part of the stored format: later versions must be able to read what earlier versions wrote.
    #[test]
    fn a_spec_is_stored_like_this() {
        let id = ExecutionId::from(TaskId::from_uuid(Uuid::from_u128(5)));
        let mut spec = ExecutionSpec::new(ExecutionInput::raw(b"{\"a\":1}").unwrap());
        assert_eq!(serde_json::to_string(&spec).unwrap(), "{\"input\":{\"json\":{\"a\":1}}}");
        (spec.attempt, spec.retry_of, spec.max_runtime) = (2, Some(id), Some(Ttl::from_secs(60)));
        assert_eq!(
            serde_json::to_string(&spec).unwrap(),
            format!(
                "{{\"input\":{{\"json\":{{\"a\":1}}}},\"attempt\":2,\"retry_of\":\"{id}\",\"max_runtime\":60000000}}"
            )
        );
        let mut spec = ExecutionSpec::new(ExecutionInput::of(&1).unwrap());
        spec.metadata.set(ExecutionSpec::STARTED_BY, "ada@laptop").unwrap();
        let stored = serde_json::to_string(&spec).unwrap();
        assert_eq!(stored, "{\"input\":{\"json\":1},\"metadata\":{\"startedBy\":\"ada@laptop\"}}");
        assert_eq!(serde_json::from_str::<ExecutionSpec>(&stored).unwrap().started_by(), Some("ada@laptop"));
    }

    fn metadata(json: &str) -> Metadata {
        serde_json::from_str(json).unwrap()
    }

    /// The entry names are part of the stored format.
    #[test]
    fn a_webhook_is_stored_as_metadata() {
        let stored = r#"{"webhookDelivery":"guid-1","webhookEvent":"push","webhookTrigger":"main"}"#;
        let event = WebhookEvent::of(&metadata(stored)).unwrap();
        assert_eq!((event.trigger.as_str(), event.event.as_ref().unwrap().as_str()), ("main", "push"));
        let mut written = Metadata::default();
        for (name, value) in event.entries() {
            written.set(name, value).unwrap();
            assert!(WebhookEvent::is_entry(name));
        }
        assert_eq!(serde_json::to_string(&written).unwrap(), stored);
        assert_eq!(WebhookEvent::of(&metadata(r#"{"webhookEvent":"push"}"#)), None);
        assert!(!WebhookEvent::is_entry("startedBy"));
    }

    /// The values are passed in the environment of a command, where a NUL would end them.
    #[test]
    fn a_webhook_has_no_control_characters() {
        let event = |text: &str| {
            WebhookEvent::of(&metadata(&format!(r#"{{"webhookTrigger":"t","webhookEvent":"{text}"}}"#)))
                .unwrap()
        };
        for text in [r"a\u0000b", r"a\nb", "", &"x".repeat(256)] {
            assert_eq!(event(text).event, None, "{text}");
        }
        assert_eq!(event("push").event.unwrap().as_str(), "push");
        assert_eq!(WebhookEvent::of(&metadata(r#"{"webhookTrigger":"a\u0000"}"#)), None);
    }

    #[test]
    fn a_payload_that_claims_a_webhook_is_known() {
        let claims = |payload: &str| !WebhookEvent::entries_in(&Payload::new(payload).unwrap()).is_empty();
        for name in [TRIGGER, EVENT, DELIVERY] {
            assert!(claims(&format!(r#"{{"input":{{"json":1}},"metadata":{{"{name}":"x"}}}}"#)), "{name}");
            assert!(claims(&format!(r#"{{"input":{{"json":1}},"facts":{{"{name}":"x"}}}}"#)), "{name}");
        }
        assert!(!claims(r#"{"input":{"json":1},"metadata":{"startedBy":"ada"}}"#));
        assert!(!claims(r#"{"metadata":{"webhookTrigger":"x"}}"#), "this is an input, not a specification");
        assert!(!claims("1"));
    }
}
