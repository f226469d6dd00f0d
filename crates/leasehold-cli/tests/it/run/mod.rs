//! `leasehold run` as a program: real processes, real signals, real terminals.

mod ends;
mod killed;
mod lab;
mod lost;
mod mirror;
mod stopped;
mod terminal;
mod waits;
