//! Webhook delivery that started an execution. It is stored in the metadata of the execution's
//! spec, so that every process that runs the execution has it.

use super::Payload;
use super::workflow::ExecutionSpec;
use crate::{DeliveryId, EventName, Metadata, TriggerId};

const TRIGGER: &str = "webhookTrigger";
const EVENT: &str = "webhookEvent";
const DELIVERY: &str = "webhookDelivery";

/// Webhook delivery that started an execution.
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
    pub fn of(facts: &Metadata) -> Option<Self> {
        let trigger = facts.get(TRIGGER).and_then(|text| TriggerId::new(text).ok())?;
        let event = facts.get(EVENT).and_then(|text| EventName::new(text).ok());
        let delivery = facts.get(DELIVERY).and_then(|text| DeliveryId::new(text).ok());
        Some(Self { trigger, event, delivery })
    }

    /// Returns the metadata entries that describe the delivery.
    pub fn facts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let event = self.event.as_ref().map(|event| (EVENT, event.as_str()));
        let delivery = self.delivery.as_ref().map(|delivery| (DELIVERY, delivery.as_str()));
        std::iter::once((TRIGGER, self.trigger.as_str())).chain(event).chain(delivery)
    }

    /// Returns whether a metadata entry of this name belongs to a webhook. Only the triggers of a
    /// server set such entries.
    pub fn is_fact(name: &str) -> bool {
        [TRIGGER, EVENT, DELIVERY].contains(&name)
    }

    /// Returns the metadata entries of a webhook in this payload of an execution, with any value. A
    /// payload of another kind of task has none.
    pub fn facts_in(payload: &Payload) -> Vec<(String, String)> {
        let Ok(brief) = payload.read::<ExecutionSpec>() else { return Vec::new() };
        let facts = brief.facts.iter().filter(|(name, _)| Self::is_fact(name));
        facts.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(json: &str) -> Metadata {
        serde_json::from_str(json).unwrap()
    }

    /// The entry names are part of the stored format.
    #[test]
    fn a_webhook_is_stored_as_facts() {
        let stored = r#"{"webhookDelivery":"guid-1","webhookEvent":"push","webhookTrigger":"main"}"#;
        let event = WebhookEvent::of(&facts(stored)).unwrap();
        assert_eq!((event.trigger.as_str(), event.event.as_ref().unwrap().as_str()), ("main", "push"));
        let mut written = Metadata::default();
        for (name, value) in event.facts() {
            written.set(name, value).unwrap();
            assert!(WebhookEvent::is_fact(name));
        }
        assert_eq!(serde_json::to_string(&written).unwrap(), stored);
        assert_eq!(WebhookEvent::of(&facts(r#"{"webhookEvent":"push"}"#)), None);
        assert!(!WebhookEvent::is_fact("startedBy"));
    }

    /// The values are passed in the environment of a command, where a NUL would end them.
    #[test]
    fn a_webhook_has_no_control_characters() {
        let event = |text: &str| {
            WebhookEvent::of(&facts(&format!(r#"{{"webhookTrigger":"t","webhookEvent":"{text}"}}"#))).unwrap()
        };
        for text in [r"a\u0000b", r"a\nb", "", &"x".repeat(256)] {
            assert_eq!(event(text).event, None, "{text}");
        }
        assert_eq!(event("push").event.unwrap().as_str(), "push");
        assert_eq!(WebhookEvent::of(&facts(r#"{"webhookTrigger":"a\u0000"}"#)), None);
    }

    #[test]
    fn a_payload_that_claims_a_webhook_is_known() {
        let claims = |payload: &str| !WebhookEvent::facts_in(&Payload::new(payload).unwrap()).is_empty();
        for name in [TRIGGER, EVENT, DELIVERY] {
            assert!(claims(&format!(r#"{{"input":{{"json":1}},"facts":{{"{name}":"x"}}}}"#)), "{name}");
        }
        assert!(!claims(r#"{"input":{"json":1},"facts":{"startedBy":"ada"}}"#));
        assert!(!claims(r#"{"facts":{"webhookTrigger":"x"}}"#), "this is an input, not a brief");
        assert!(!claims("1"));
    }
}
