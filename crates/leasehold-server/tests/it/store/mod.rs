//! A server as a store: the same suites as every engine, and what is special here: order, faults, who may do what.

mod access;
mod docs;
mod faults;
mod order;
#[path = "../../../../leasehold/tests/it/engines/proxy.rs"]
mod proxy;
mod race;
mod slow;
mod strangers;
mod suite;
mod support;
mod tls;
mod wakes;
#[path = "../../../../leasehold/tests/it/engines/wire.rs"]
mod wire;
mod wire_http;
