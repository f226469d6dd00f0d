//! Conversion between documents and items.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

use crate::error::{Error, Result, StoreErrorKind};
use crate::model::Timestamp;
use crate::store::{Annotation, Document, NewDocument};

/// Name of the only key attribute: the name of a lock.
pub(super) const NAME: &str = "name";
/// Name of the version attribute, which rises with every write.
pub(super) const VERSION: &str = "version";
/// Name of the attribute with the document body.
pub(super) const BODY: &str = "body";
/// Attribute that identifies a write, so that a write whose response was lost can be recognized.
const WRITE_ID: &str = "write_id";
/// Name of the attribute with the time when the item may be deleted, in seconds since 1970. No lock
/// has it: its token must never be lost.
pub(super) const TTL: &str = "ttl";

pub(super) type Item = HashMap<String, AttributeValue>;

pub(super) struct ItemWrite<'a> {
    pub(super) key: &'a str,
    pub(super) version: u64,
    pub(super) write_id: &'a str,
    pub(super) draft: NewDocument,
    pub(super) now: Timestamp,
}

impl ItemWrite<'_> {
    pub(super) fn into_item(self) -> Item {
        let mut item = Item::from([
            (NAME.to_owned(), text(self.key)),
            (VERSION.to_owned(), number(self.version)),
            (BODY.to_owned(), AttributeValue::S(self.draft.body)),
            (WRITE_ID.to_owned(), text(self.write_id)),
        ]);
        if let Some(keep) = self.draft.keep {
            item.insert(TTL.to_owned(), number(self.now.plus(keep).as_micros() / 1_000_000));
        }
        for (name, annotation) in self.draft.annotations {
            item.insert(name.to_owned(), attribute(annotation));
        }
        item
    }
}

fn attribute(annotation: Annotation) -> AttributeValue {
    match annotation {
        Annotation::Text(text) => AttributeValue::S(text),
        Annotation::Number(value) => number(value),
        Annotation::Texts(texts) => {
            AttributeValue::M(texts.into_iter().map(|(name, text)| (name, AttributeValue::S(text))).collect())
        }
    }
}

/// Whether this write produced the current item.
pub(super) fn is_written_by(item: &Item, write_id: &str) -> bool {
    item.get(WRITE_ID).and_then(|id| id.as_s().ok()).is_some_and(|id| id == write_id)
}

/// Returns the key and the document of an item.
pub(super) fn read(mut item: Item) -> Result<(String, Document)> {
    let version = item.get(VERSION).and_then(|version| version.as_n().ok()).and_then(|n| n.parse().ok());
    let mut take = |name: &str| match item.remove(name) {
        Some(AttributeValue::S(text)) => Some(text),
        _ => None,
    };
    match (take(NAME), version, take(BODY)) {
        (Some(key), Some(version), Some(body)) => Ok((key, Document { version, body })),
        _ => Err(Error::store(
            StoreErrorKind::Broken,
            "the table contains an item that leasehold did not write",
            "use a separate table for leasehold",
        )),
    }
}

pub(super) fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

pub(super) fn number(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}
