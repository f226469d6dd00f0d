//! Tasks in a file: the suite, and what only a file can do.

mod caller;
mod crash;
mod earlier;
mod restart;
mod suite;
