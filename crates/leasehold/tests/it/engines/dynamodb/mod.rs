//! `dynamodb://TABLE`: the suite, and what only a service far away can do: lose answers, throttle, have no clock.

mod clock;
mod faults;
mod front;
mod race;
mod suite;
mod support;
mod table;
mod wire;
