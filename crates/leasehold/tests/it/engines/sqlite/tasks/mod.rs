//! Tasks in SQLite: the conformance suite, crashes, restarts, migrations and transactions of the caller.

mod crash;
mod migration;
mod restart;
mod suite;
mod user_transaction;
