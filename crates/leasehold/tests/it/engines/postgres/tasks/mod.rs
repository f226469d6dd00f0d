//! Tasks and documents: suite, cost, counts, faults, plain tasks, lone callers, several processes, and transactions of
//! the caller.

mod cost;
mod counts;
mod faults;
mod inline_connection;
mod plain;
mod processes;
mod suite;
mod user_transaction;
