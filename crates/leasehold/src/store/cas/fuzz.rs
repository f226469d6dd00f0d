//! Fuzz target of the documents of locks.

use super::lock_doc::{LockDoc, parse, write};
use crate::fuzz_corpus;
use crate::testing::fuzz::{Shape, fuzz};

#[test]
fn cas_documents_are_read_as_they_were_written_or_refused() {
    fuzz(fuzz_corpus!("cas-documents"), 3_000, |input| {
        match parse::<LockDoc>(&String::from_utf8_lossy(input)) {
            Ok(mut doc) => {
                let written = doc.to_new_document().unwrap();
                let again: LockDoc = parse(&written.body).unwrap();
                assert_eq!(write(&again).unwrap(), written.body);
                assert_eq!(again.record, doc.record);
                assert!(doc.next_event() >= doc.first_event);
                doc.record_write(7);
                assert!(doc.includes_write(7));
                Shape::of(&doc)
            }
            Err(error) => {
                assert_eq!(error.code(), "STORE_BROKEN");
                Shape::of(&std::error::Error::source(&error).map(|cause| Shape::of_text(&cause)))
            }
        }
    });
}
