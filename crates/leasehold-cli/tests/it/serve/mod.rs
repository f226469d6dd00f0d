//! `leasehold serve` and `leasehold token`, as programs.

mod attacks;
mod ends;
mod faults;
mod hidden;
mod hooks;
mod runs;
mod starts;
pub(crate) mod support;
mod tls;
mod tokens;
