//! The `OpenAPI` document, with the required roles and the schemas of request values.

pub(crate) mod document;
pub(crate) mod roles;
pub(crate) mod schemas;
