//! Conformance cases, by topic.

#![expect(missing_docs, reason = "a case is named by the sentence that it shows")]

pub mod admin;
pub mod exclusive;
pub mod forget;
pub mod history;
pub mod listing;
pub mod notices;
pub mod queue;
pub mod several;
pub mod shared;
pub mod sweep;
