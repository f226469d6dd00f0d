//! Tasks and documents: suite, cost, faults, several processes, and transactions of the caller.

mod cost;
mod faults;
mod processes;
mod suite;
mod user_transaction;
