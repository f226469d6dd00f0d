//! The client floor: guards, strategies, faults between client and store.

mod acquire;
mod faults;
mod guard;
mod several;
mod strategies;
mod support;
