//! Events that the server sends to subscribers: one reader or feed serves all of them.

pub(crate) mod event_stream;
pub(crate) mod task_stream;
