//! Tasks and documents: the suite, what they cost, and what may happen to them.

mod cost;
mod crew;
mod faults;
mod inside;
mod suite;
