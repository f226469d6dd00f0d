//! `OpenAPI` schemas of the value types. Each limit that a type enforces is stated here through the
//! constant that the type checks.

use serde_json::Value;
use utoipa::openapi::schema::{KnownFormat, Object, ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{Number, PartialSchema, ToSchema};

use super::name::{MAX_BYTES, MAX_WORKFLOW};
use super::schedule::definition::LONGEST_NAME;
use super::{
    CronExpression, ExecutionId, Holder, LeaseId, LockName, MAX_HOLDERS, Metadata, MisfirePolicy, Priority,
    QueueName, Reason, Reuse, ScheduleName, Slots, TaskId, TaskKey, TaskState, TimeZoneName, Token,
    TriggerId, WorkerId, WorkflowName,
};

/// Characters that short texts must not contain: control characters, line separators and
/// bidirectional controls.
const REFUSED: &str = r"\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069";
/// Blank characters, with which a short text must not begin or end.
const BLANK: &str = r" \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000";
const UUID: &str = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";

macro_rules! described {
    ($($type:ident => $schema:expr;)*) => {$(
        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                RefOr::T(Schema::Object($schema.build()))
            }
        }

        impl ToSchema for $type {}
    )*};
}

described! {
    LockName => short_text("Name of a lock", MAX_BYTES);
    Holder => short_text("Name of the holder of a lock", MAX_BYTES);
    Reason => short_text("Reason, kept in the history", MAX_BYTES);
    QueueName => short_text("Name of a queue", MAX_BYTES);
    ScheduleName => short_text("Name of a schedule", LONGEST_NAME);
    TaskKey => short_text("Key of a task, unique in its queue", MAX_BYTES);
    WorkflowName => short_text("Name of a workflow", MAX_WORKFLOW);
    TriggerId => short_text("Id of a trigger", MAX_BYTES);
    LeaseId => uuid("Id of a lease");
    TaskId => uuid("Id of a task");
    WorkerId => uuid("Id of a worker");
    ExecutionId => text("Id of an execution").pattern(Some(format!("^exec_{UUID}$")));
    Token => whole("Fencing token; it rises with each grant", 0, Token::MAX.get());
    Slots => whole("Largest number of exclusive holders", 1, MAX_HOLDERS as u64);
    Priority => number("Weight in the queue").minimum(Some(Number::Int(-1000))).maximum(Some(Number::Int(1000)));
    Reuse => choice("When a new task may take the key of an earlier one", &["never", "failed", "finished"]);
    MisfirePolicy => choice("What is done about ticks at which no worker ran", &["all", "last", "none"]);
    TaskState => choice("State of a task", &TaskState::ALL.map(TaskState::as_str));
    CronExpression => text("Cron expression of five fields, or of six with seconds; or @hourly, @daily, @weekly, @monthly, @yearly")
        .format(Some(SchemaFormat::Custom("cron".to_owned())));
    TimeZoneName => text("Name of a time zone in the IANA database")
        .format(Some(SchemaFormat::Custom("time-zone".to_owned())));
}

fn text(what: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).description(Some(what))
}

/// Returns the schema for the validation rule of `name.rs`. The type limits bytes; a schema can
/// only limit characters.
fn short_text(what: &str, most: usize) -> ObjectBuilder {
    text(&format!("{what}: 1 to {most} bytes of UTF-8 without control characters, line separators and bidirectional controls, and without a blank at either end"))
        .min_length(Some(1))
        .max_length(Some(most))
        .pattern(Some(format!("^[^{BLANK}{REFUSED}]([^{REFUSED}]*[^{BLANK}{REFUSED}])?$")))
}

fn uuid(what: &str) -> ObjectBuilder {
    text(what).format(Some(SchemaFormat::KnownFormat(KnownFormat::Uuid)))
}

fn number(what: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Integer).description(Some(what))
}

fn whole(what: &str, least: u64, most: u64) -> ObjectBuilder {
    let bound = |number| Some(Number::UInt(usize::try_from(number).unwrap_or(usize::MAX)));
    let format = SchemaFormat::KnownFormat(KnownFormat::Int64);
    number(what).format(Some(format)).minimum(bound(least)).maximum(bound(most))
}

fn choice(what: &str, words: &[&str]) -> ObjectBuilder {
    text(what).enum_values(Some(words.iter().map(|word| Value::from(*word))))
}

impl PartialSchema for Metadata {
    fn schema() -> RefOr<Schema> {
        let key = text("1 to 64 bytes without '=' and control characters")
            .min_length(Some(1))
            .max_length(Some(64))
            .pattern(Some(r"^[^=\u0000-\u001f\u007f-\u009f]*$"));
        let most = Self::MAX_ENTRIES;
        let mut entries: Object = ObjectBuilder::new()
            .description(Some(format!(
                "Metadata of a holder: at most {most} entries of at most {} bytes in all",
                Self::MAX_BYTES
            )))
            .additional_properties(Some(text("Value of an entry").max_length(Some(Self::MAX_BYTES))))
            .max_properties(Some(most))
            .build();
        entries.property_names = Some(Box::new(Schema::Object(key.build())));
        RefOr::T(Schema::Object(entries))
    }
}

impl ToSchema for Metadata {}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema<T: PartialSchema>() -> Value {
        serde_json::to_value(T::schema()).unwrap()
    }

    #[test]
    fn a_schema_has_the_limits_of_its_type() {
        let name = schema::<LockName>();
        assert_eq!((&name["minLength"], &name["maxLength"]), (&Value::from(1), &Value::from(255)));
        assert_eq!(schema::<WorkflowName>()["maxLength"], 246);
        assert_eq!(schema::<Token>()["maximum"], 9_007_199_254_740_991_u64);
        assert_eq!(schema::<Slots>()["minimum"], 1);
        assert_eq!(schema::<TaskState>()["enum"].as_array().unwrap().len(), 7);
        assert_eq!(schema::<Metadata>()["maxProperties"], 32);
    }
}
