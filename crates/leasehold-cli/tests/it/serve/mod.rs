//! `leasehold serve` and `leasehold token`, as programs.

mod attacks;
mod ends;
mod faults;
mod lab;
mod runs;
mod starts;
mod tokens;
