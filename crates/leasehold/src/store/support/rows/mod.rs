//! What engines with tables share: pages of rows, and long queues as rows.

pub(crate) mod pages;
pub(crate) mod ticket_rows;
