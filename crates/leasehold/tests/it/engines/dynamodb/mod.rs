//! Tests of `dynamodb://TABLE`: the conformance suite, lost responses, throttling, and a service without a clock.

mod clock;
mod fault_proxy;
mod faults;
mod race;
mod suite;
mod support;
mod table;
mod wire;
