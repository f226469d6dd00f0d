//! Commands: each one calls the client library and passes the result to `output`.

mod acquire;
mod ask;
mod dispatch;
mod doctor;
mod fence;
mod force;
mod history;
mod lease;
mod limits;
mod list;
mod look;
mod request;
mod run;
mod schedules;
mod serve;
mod shell;
mod store;
mod sweep;
mod tasks;
mod token;
mod wait;
mod watch;
mod workflows;

pub(crate) use dispatch::dispatch;
