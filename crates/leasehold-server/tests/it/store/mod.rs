//! A server as a store: the suites of every engine, and the properties of this store: order,
//! faults, access.

mod access;
mod docs;
mod faults;
mod notifications;
mod order;
mod other_servers;
#[path = "../../../../leasehold/tests/it/engines/proxy.rs"]
mod proxy;
mod race;
mod slow_network;
mod suite;
mod support;
mod tls;
#[path = "../../../../leasehold/tests/it/engines/wire.rs"]
mod wire;
mod wire_http;

pub(crate) use other_servers::serve;
