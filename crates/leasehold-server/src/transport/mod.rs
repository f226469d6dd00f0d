//! Connections of clients: listening, TLS and timeouts.

pub(crate) mod listen;
pub(crate) mod timeouts;
pub(crate) mod tls;
