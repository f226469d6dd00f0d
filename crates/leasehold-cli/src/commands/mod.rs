//! Commands: each one calls the client library and passes the result to `output`.

mod context;
mod dispatch;
mod doctor;
mod events;
mod fence;
mod ids;
mod locks;
mod maintenance;
mod run;
mod schedules;
#[cfg(feature = "serve")]
mod serve;
mod shell;
mod tasks;
#[cfg(feature = "serve")]
mod token;
#[cfg(feature = "torture")]
mod torture;
mod workflows;

pub(crate) use dispatch::dispatch;
