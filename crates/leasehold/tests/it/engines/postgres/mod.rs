//! `postgres:`: the suite, and the behaviour of a remote server: slow, restarted, cut off, rejecting.

mod connect_errors;
mod doctor;
mod fast_path;
mod faults;
mod idle_connections;
mod inline_connection;
mod list;
mod locked_rows;
mod maintenance;
mod migrations;
mod notifications;
mod private_server;
mod queue;
mod schema;
mod suite;
mod tasks;
mod wire;
mod workflows;
