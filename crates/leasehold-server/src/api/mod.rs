//! The endpoints, one file per kind of thing.

pub(crate) mod health;
pub(crate) mod locks;
pub(crate) mod store;
