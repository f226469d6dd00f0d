//! HTML of each page, with its frame and the parts that pages share.

pub(super) mod executions;
pub(super) mod layout;
pub(super) mod lists;
pub(super) mod locks;
pub(super) mod overview;
pub(super) mod parts;
pub(super) mod tasks;
