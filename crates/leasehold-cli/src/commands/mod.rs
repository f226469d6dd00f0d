//! Commands: each one calls the client library and passes the result to `output`.

mod dispatch;
mod doctor;
mod events;
mod fence;
mod limits;
mod locks;
mod maintenance;
mod request;
mod run;
mod schedules;
mod serve;
mod shell;
mod tasks;
mod token;
mod workflows;

pub(crate) use dispatch::dispatch;
