//! Schemas of request values for the `OpenAPI` document. The handlers validate the values; the
//! types of `leasehold::model` bring their own schemas.

use leasehold::model::Ttl;
use serde_json::{Value, json};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Name of the schema whose minimum depends on the store.
pub(crate) const TTL: &str = "TtlSeconds";
/// Name of the schema whose maximum depends on the settings.
pub(crate) const WAIT: &str = "WaitSeconds";

/// Checks that the bounds in seconds below match those of [`Ttl`].
const _: () = assert!(Ttl::MAX.as_micros() == 315_360_000 * 1_000_000 && Ttl::MIN.as_micros() == 1_000);

macro_rules! schemas {
    ($($(#[$doc:meta])* $name:ident($type:ty);)*) => {$(
        #[derive(ToSchema)]
        $(#[$doc])*
        #[expect(dead_code, reason = "used only for the OpenAPI document")]
        pub(crate) struct $name($type);
    )*};
}

schemas! {
    /// TTL of a lease in seconds. Some stores have a minimum above one millisecond.
    #[schema(minimum = 0.001, maximum = 315_360_000, example = 30.0)]
    TtlSeconds(f64);
    /// Maximum wait time in seconds. The settings of the server define the upper limit.
    #[schema(minimum = 0, maximum = 60, example = 20.0)]
    WaitSeconds(f64);
    /// Number of seconds, at least one millisecond and at most ten years.
    #[schema(minimum = 0.001, maximum = 315_360_000)]
    PositiveSeconds(f64);
    /// Number of seconds, zero or more, at most ten years.
    #[schema(minimum = 0, maximum = 315_360_000)]
    DelaySeconds(f64);
    /// Count of items.
    #[schema(minimum = 0, maximum = 4_294_967_295_usize)]
    Count(u64);
    /// 64-bit counter.
    #[schema(minimum = 0, maximum = 18_446_744_073_709_551_615_usize, format = "uint64")]
    LongCount(u64);
    /// Number of items on a page.
    #[schema(minimum = 1, maximum = 1000, example = 100)]
    PageSize(u64);
    /// Number of attempts at a task.
    #[schema(minimum = 1, maximum = 1000)]
    Attempts(u64);
    /// Cursor from the previous response. Opaque; empty for the first page.
    #[schema(format = "cursor")]
    PageCursor(String);
    /// Text in the description of a worker: at most 255 bytes of UTF-8 without control characters.
    #[schema(max_length = 255, pattern = r"^[^\u0000-\u001f\u007f-\u009f]*$")]
    WorkerText(String);
    /// Idempotency key of a task or an execution, with or without double quotes.
    #[schema(max_length = 255, pattern = r"^[!#-~]([ -~]*[!#-~])?$")]
    IdempotencyKey(String);
    /// Version of a task in double quotes, equal to its `ETag`.
    #[schema(pattern = "^\"[0-9]{1,19}\"$", example = "\"3\"")]
    VersionTag(String);
    /// Name of a Terraform state: 1 to 252 bytes of UTF-8 without control characters, line
    /// separators and bidirectional controls, and without a blank at its end.
    #[schema(min_length = 1, max_length = 252, pattern = r"^[^\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]*[^ \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]$")]
    StateName(String);
    /// Duration, such as `90s`, `2h` or `1h30m`.
    #[schema(format = "duration-text", pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$", example = "2h")]
    DurationText(String);
}

/// Final state of a task.
#[derive(ToSchema)]
#[serde(rename_all = "lowercase")]
#[expect(dead_code, reason = "used only for the OpenAPI document")]
pub(crate) enum FinishedState {
    /// The task was completed.
    Succeeded,
    /// The task failed and is not retried.
    Failed,
    /// The task was canceled.
    Aborted,
}

/// Terraform state. The server reads these three members and stores the whole document.
#[derive(ToSchema)]
#[expect(dead_code, reason = "used only for the OpenAPI document")]
pub(crate) struct TerraformState {
    /// Serial number that the client assigns.
    #[schema(value_type = LongCount, required = false)]
    serial: u64,
    /// Lineage that the client assigns to all versions of the state.
    #[schema(required = false)]
    lineage: String,
    /// Version of the client.
    #[schema(required = false)]
    terraform_version: String,
}

/// Boolean that must be `true`: an explicit confirmation.
pub(crate) struct Confirmation;

impl PartialSchema for Confirmation {
    fn schema() -> RefOr<Schema> {
        RefOr::T(ObjectBuilder::new().schema_type(Type::Boolean).enum_values(Some([true])).into())
    }
}

impl ToSchema for Confirmation {}

/// Returns, by schema name, what the body must not match: fields that exclude or require each other.
pub(crate) fn exclusions() -> [(&'static str, Value); 5] {
    let none = json!({ "type": "null" });
    let set = json!({ "not": { "type": "null" } });
    let is_true = json!({ "const": true });
    let both = |one: &str, first: &Value, two: &str, second: &Value| json!({ "required": [one, two], "properties": { one: first, two: second } });
    let with_outcome =
        |how: &str, field: &str, value: &Value| both("outcome", &json!({ "const": how }), field, value);
    let strategy = |how: &str| json!({ "const": how });
    let acquire = [
        both(
            "strategy",
            &strategy("failFast"),
            "waitSeconds",
            &json!({ "type": "number", "exclusiveMinimum": 0 }),
        ),
        both("strategy", &strategy("failFast"), "keepTicket", &is_true),
        json!({ "required": ["strategy"], "properties": { "strategy": strategy("stealStale"), "staleAfterSeconds": none } }),
        both("mode", &json!({ "const": "shared" }), "slots", &json!({ "type": "number", "minimum": 2 })),
        both("leaseId", &set, "with", &json!({ "type": "array", "minItems": 1 })),
        json!({ "required": ["keepTicket"], "properties": { "keepTicket": is_true, "leaseId": none } }),
    ];
    let mut settle = vec![
        both("final", &is_true, "retryInSeconds", &set),
        with_outcome("fail", "result", &set),
        with_outcome("complete", "retryInSeconds", &set),
        with_outcome("abort", "retryInSeconds", &set),
    ];
    for how in ["complete", "release", "abort"] {
        settle.extend([with_outcome(how, "error", &set), with_outcome(how, "final", &is_true)]);
    }
    for how in ["release", "abort"] {
        settle.push(with_outcome(how, "result", &set));
    }
    let no_change = json!({
        "not": { "required": ["payload"] },
        "properties": {
            "priority": none, "runAt": none, "maxAttempts": none, "backoffSeconds": none, "archived": none,
        },
    });
    [
        ("AcquireBody", json!({ "anyOf": acquire })),
        ("NewTaskBody", both("delaySeconds", &set, "runAt", &set)),
        ("FailBody", both("final", &is_true, "retryInSeconds", &set)),
        ("SettleItem", json!({ "anyOf": settle })),
        ("UpdateBody", no_change),
    ]
}
