//! Connections to the server.

mod connector;
mod late_statements;
mod listener;
mod session;
mod tls;

#[cfg(feature = "testing")]
pub(super) use connector::planner_statements;
pub(super) use connector::{
    CLOSE_DEDICATED_AFTER, ConnectionOwner, Connector, Opened, Purpose, RELEASE_AFTER, RETRY_DELAY,
    close_idle_connections, drive,
};
pub(super) use late_statements::{Backend, IN_TIME};
pub(super) use listener::{Listener, NOTIFY_TIMEOUT, open_listening};
pub(super) use session::{OPERATION_TIMEOUT, STATEMENT_TIMEOUT, Session, with_timeout};
