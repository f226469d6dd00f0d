//! `sqlite:`: the suite, and what only a file can do: restart, lose power, be of another version, be in the way.

mod boot;
mod file;
mod processes;
mod restart;
mod suite;
mod tasks;
