//! `leasehold serve` and `leasehold token`, as programs.

mod attacks;
mod ends;
mod faults;
mod hidden;
mod hooks;
pub(crate) mod lab;
mod runs;
mod starts;
mod tls;
mod tokens;
