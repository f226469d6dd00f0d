//! Workflows through the client, on every engine with tasks.

pub(crate) mod admin;
mod cases;
pub(crate) mod concurrency;
pub(crate) mod external_worker;
pub(crate) mod fixture;
pub(crate) mod running;
pub(crate) mod starting;

pub(crate) use cases::workflow_cases;

mod memory {
    super::workflow_cases!(crate::client::workflows::fixture::memory);
}

mod sqlite {
    super::workflow_cases!(crate::client::workflows::fixture::sqlite);
}
