//! Fuzz target of items.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::Value;

use super::item::{Item, ItemWrite, is_written_by, read};
use crate::fuzz_corpus;
use crate::model::{Timestamp, Ttl};
use crate::store::{Annotation, Document, NewDocument};
use crate::testing::fuzz::{Shape, fuzz};

#[test]
fn dynamodb_items_are_read_as_they_were_written_or_refused() {
    fuzz(fuzz_corpus!("dynamodb-items"), 4_000, |input| {
        let Ok(Value::Object(fields)) = serde_json::from_slice(input) else { return Shape::of(&"no item") };
        let item: Item = fields.into_iter().map(|(name, value)| (name, attribute(value))).collect();
        let is_ours = is_written_by(&item, "w");
        match read(item) {
            Ok((key, Document { version, body })) => {
                let annotations = vec![
                    ("status", Annotation::Text("held".to_owned())),
                    ("token", Annotation::Number(version)),
                ];
                let draft = NewDocument { body: body.clone(), annotations, keep: Some(Ttl::MAX) };
                let write = ItemWrite {
                    key: &key,
                    version,
                    write_id: "w",
                    draft,
                    now: Timestamp::from_micros(version),
                };
                let item = write.into_item();
                assert!(is_written_by(&item, "w") && !is_written_by(&item, "v"));
                let (read_key, document) = read(item).unwrap();
                assert_eq!((read_key, document.version, document.body), (key, version, body));
                Shape::of(&("an item", is_ours))
            }
            Err(error) => {
                assert_eq!(error.code(), "STORE_BROKEN");
                Shape::of(&("refused", is_ours))
            }
        }
    });
}

/// Returns an attribute as DynamoDB writes it in JSON: `{"S": "text"}`.
fn attribute(value: Value) -> AttributeValue {
    let Value::Object(typed) = value else { return AttributeValue::Null(true) };
    match typed.into_iter().next() {
        Some((kind, Value::String(text))) if kind == "S" => AttributeValue::S(text),
        Some((kind, Value::String(text))) if kind == "N" => AttributeValue::N(text),
        Some((_, Value::Object(map))) => AttributeValue::M(
            map.into_iter().map(|(name, value)| (name, attribute(value))).collect::<HashMap<_, _>>(),
        ),
        Some((_, Value::Bool(flag))) => AttributeValue::Bool(flag),
        _ => AttributeValue::Null(true),
    }
}
