//! Tests of tasks on issues.

mod cost;
mod crash;
mod enqueue;
mod faults;
mod lifecycle;
mod people;
mod race;
mod support;
