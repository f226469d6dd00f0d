//! `dynamodb://TABLE`: the suite, and what only a service far away can do: lose answers, throttle, have no clock.

mod suite;
mod support;
