//! Workflows through the client: every row of the table of starts, on every engine with tasks.

pub(crate) mod by_hand;
mod cases;
pub(crate) mod external;
pub(crate) mod lab;
pub(crate) mod racing;
pub(crate) mod running;
pub(crate) mod starting;

pub(crate) use cases::workflow_cases;

mod memory {
    super::workflow_cases!(crate::client::workflows::lab::memory);
}

mod sqlite {
    super::workflow_cases!(crate::client::workflows::lab::sqlite);
}
