//! Tasks on issues.

mod adding;
mod cost;
mod crash;
mod faults;
mod people;
mod race;
mod support;
mod thread;
