//! Starter of an execution: the API token of the request, recorded in the `ExecutionSpec`.

use leasehold::model::{ExecutionSpec, Holder, NewTask, Payload, QueueName, WorkflowName};

use super::gate::Who;

impl Who {
    /// Records the caller as the starter of an execution, in a task of a workflow's queue. A name
    /// in the request is kept beside the name of the token, as in `ada@laptop via ci`. Without API
    /// tokens nothing is changed.
    pub(crate) fn sign_start(&self, new: &mut NewTask) {
        let before = new.payload.fingerprint();
        if let Some(signed) = self.signed_start(&new.queue, &new.payload) {
            new.payload = signed;
            // The key must keep identifying the payload that the caller sent, not the signed one.
            new.fingerprint.get_or_insert(before);
        }
    }

    /// Returns the payload of such a task with the caller's name in it, or `None` if no change is needed.
    pub(crate) fn signed_start(&self, queue: &QueueName, payload: &Payload) -> Option<Payload> {
        if !self.has_token || WorkflowName::of_queue(queue).is_none() {
            return None;
        }
        // A payload that is not an `ExecutionSpec` is only an input and has no starter.
        let mut brief: ExecutionSpec = payload.read().ok()?;
        let claimed = brief.started_by().and_then(|name| Holder::new(name).ok());
        let name = claimed.map_or_else(|| self.name.clone(), |claimed| self.signed(claimed).to_string());
        brief.facts.set(ExecutionSpec::STARTED_BY, name).ok()?;
        Payload::of(&brief).ok()
    }
}

#[cfg(test)]
mod tests {
    use leasehold::model::{Input, TaskId};
    use uuid::Uuid;

    use super::*;
    use crate::access::Role;

    fn who(has_token: bool) -> Who {
        Who { name: "ci".to_owned(), role: Role::Worker, has_token, scopes: Vec::new() }
    }

    fn started_by(who: &Who, claimed: Option<&str>) -> Option<String> {
        let mut brief = ExecutionSpec::new(Input::of(&1).unwrap());
        if let Some(claimed) = claimed {
            brief.facts.set(ExecutionSpec::STARTED_BY, claimed).unwrap();
        }
        let queue = WorkflowName::new("deploy").unwrap().queue();
        let payload = Payload::of(&brief).unwrap();
        let mut new = NewTask::new(TaskId::from_uuid(Uuid::nil()), queue, payload.clone());
        who.sign_start(&mut new);
        if new.payload != payload {
            assert_eq!(new.fingerprint, Some(payload.fingerprint()), "the key stands for the same");
        }
        new.payload.read::<ExecutionSpec>().unwrap().started_by().map(str::to_owned)
    }

    #[test]
    fn a_token_signs_what_it_starts_and_cannot_name_another() {
        let token = who(true);
        assert_eq!(started_by(&token, None).as_deref(), Some("ci"));
        assert_eq!(started_by(&token, Some("ada@laptop")).as_deref(), Some("ada@laptop via ci"));
        assert_eq!(started_by(&token, Some("ci")).as_deref(), Some("ci"));
        assert_eq!(started_by(&who(false), Some("ada@laptop")).as_deref(), Some("ada@laptop"));
        let plain = Payload::of(&serde_json::json!({"a": 1})).unwrap();
        assert_eq!(token.signed_start(&QueueName::new("mail").unwrap(), &plain), None);
        assert_eq!(token.signed_start(&WorkflowName::new("w").unwrap().queue(), &plain), None);
    }
}
