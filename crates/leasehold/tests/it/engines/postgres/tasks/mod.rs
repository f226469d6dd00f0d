//! Tasks and documents: suite, cost, faults, several processes, and transactions of the caller.

mod cost;
mod faults;
mod plain;
mod processes;
mod suite;
mod user_transaction;
