//! Schemas of the store protocol in the `OpenAPI` document. The arguments of most calls are defined
//! by the library and not described.

use leasehold::store::protocol::{DocCall, LockCall, MOST_LISTENED, TaskCall, VERSION};
use serde_json::json;
use utoipa::openapi::schema::{ArrayBuilder, KnownFormat, ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{Number, PartialSchema, ToSchema};

macro_rules! enum_schemas {
    ($($(#[$doc:meta])* $name:ident = $values:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let values = $values.iter().map(|value| json!(value));
                RefOr::T(ObjectBuilder::new().schema_type(Type::String).enum_values(Some(values)).into())
            }
        }

        impl ToSchema for $name {}
    )*};
}

enum_schemas! {
    /// Version of the store protocol.
    ProtocolVersion = [VERSION];
    /// Name of a lock call.
    LockCallName = LockCall::WORDS;
    /// Name of a task call.
    TaskCallName = TaskCall::WORDS;
    /// Name of a document call.
    DocCallName = DocCall::WORDS;
}

/// Subscriptions of a client: the only argument of the call.
pub(crate) struct ListenArguments;

impl PartialSchema for ListenArguments {
    fn schema() -> RefOr<Schema> {
        let uuid = || {
            let format = SchemaFormat::KnownFormat(KnownFormat::Uuid);
            ObjectBuilder::new().schema_type(Type::String).format(Some(format))
        };
        let list = |items: RefOr<Schema>| ArrayBuilder::new().items(items).max_items(Some(MOST_LISTENED));
        let number = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(Number::UInt(0)));
        let number = number.maximum(Some(Number::UInt(usize::MAX)));
        let queue = utoipa::openapi::Ref::from_schema_name("QueueName");
        let listen = ObjectBuilder::new()
            .property("client", uuid())
            .property("number", number)
            .property("leases", list(uuid().into()))
            .property("queues", list(queue.into()))
            .property("notices", list(uuid().into()));
        let listen =
            ["client", "number", "leases", "queues"].into_iter().fold(listen, ObjectBuilder::required);
        RefOr::T(ArrayBuilder::new().items(listen).min_items(Some(1)).max_items(Some(1)).into())
    }
}

impl ToSchema for ListenArguments {}
