//! What every request passes before its handler: its id, and its body, limited and parsed strictly.

pub(crate) mod body;
pub(crate) mod request_id;
pub(crate) mod strict;
