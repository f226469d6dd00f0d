//! `leasehold run` as a program: real processes, real signals, real terminals.

mod ends;
mod killed;
mod lab;
mod lost;
mod mirror;
mod stopped;
mod tasks_on_terminal;
mod terminal;
mod waits;
