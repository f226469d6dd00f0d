//! Starter of an execution: the API token of the request, recorded in the `ExecutionSpec`.

use leasehold::model::{ExecutionSpec, Holder, NewTask, Payload, QueueName, WorkflowName};

use super::authenticator::Identity;

impl Identity {
    /// Records the caller as the starter of an execution, in a task of a workflow's queue. A name
    /// in the request is kept beside the name of the token, as in `ada@laptop via ci`. Without API
    /// tokens nothing is changed.
    pub(crate) fn sign_start(&self, new: &mut NewTask) {
        let fingerprint = new.payload.fingerprint();
        if let Some(signed) = self.signed_start(&new.queue, &new.payload) {
            new.payload = signed;
            // The key must keep identifying the payload that the caller sent, not the signed one.
            new.fingerprint.get_or_insert(fingerprint);
        }
    }

    /// Returns the payload of such a task with the caller's name in it, or `None` if no change is
    /// needed.
    pub(crate) fn signed_start(&self, queue: &QueueName, payload: &Payload) -> Option<Payload> {
        if !self.has_token || WorkflowName::of_queue(queue).is_none() {
            return None;
        }
        // A payload that is not an `ExecutionSpec` is only an input and has no starter.
        let mut spec: ExecutionSpec = payload.read().ok()?;
        let claimed = spec.started_by().and_then(|name| Holder::new(name).ok());
        let name = claimed.map_or_else(|| self.name.clone(), |claimed| self.signed(claimed).to_string());
        spec.facts.set(ExecutionSpec::STARTED_BY, name).ok()?;
        Payload::of(&spec).ok()
    }
}

#[cfg(test)]
mod tests {
    use leasehold::model::{Input, TaskId};
    use uuid::Uuid;

    use super::*;
    use crate::access::Role;

    fn identity(has_token: bool) -> Identity {
        Identity { name: "ci".to_owned(), role: Role::Worker, has_token, scopes: Vec::new() }
    }

    fn started_by(identity: &Identity, claimed: Option<&str>) -> Option<String> {
        let mut spec = ExecutionSpec::new(Input::of(&1).unwrap());
        if let Some(claimed) = claimed {
            spec.facts.set(ExecutionSpec::STARTED_BY, claimed).unwrap();
        }
        let queue = WorkflowName::new("deploy").unwrap().queue();
        let payload = Payload::of(&spec).unwrap();
        let mut new = NewTask::new(TaskId::from_uuid(Uuid::nil()), queue, payload.clone());
        identity.sign_start(&mut new);
        if new.payload != payload {
            assert_eq!(new.fingerprint, Some(payload.fingerprint()), "the key identifies the same payload");
        }
        new.payload.read::<ExecutionSpec>().unwrap().started_by().map(str::to_owned)
    }

    #[test]
    fn a_start_records_its_token_beside_a_claimed_name() {
        let token = identity(true);
        assert_eq!(started_by(&token, None).as_deref(), Some("ci"));
        assert_eq!(started_by(&token, Some("ada@laptop")).as_deref(), Some("ada@laptop via ci"));
        assert_eq!(started_by(&token, Some("ci")).as_deref(), Some("ci"));
        assert_eq!(started_by(&identity(false), Some("ada@laptop")).as_deref(), Some("ada@laptop"));
        let plain = Payload::of(&serde_json::json!({"a": 1})).unwrap();
        assert_eq!(token.signed_start(&QueueName::new("mail").unwrap(), &plain), None);
        assert_eq!(token.signed_start(&WorkflowName::new("w").unwrap().queue(), &plain), None);
    }
}
