//! Tasks in SQLite: the conformance suite, crashes, restarts and transactions of the caller.

mod crash;
mod restart;
mod suite;
mod user_transaction;
