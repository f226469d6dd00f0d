//! `leasehold run` as a program: real processes, real signals, real terminals.

pub(crate) mod contained;
mod ends;
mod killed;
mod lost;
pub(crate) mod matrix;
mod mirror;
mod no_clone3;
mod several;
mod stopped;
mod support;
mod tasks_on_terminal;
mod terminal;
mod waits;

pub(crate) use support::full_pipe;
pub(crate) use terminal::Screen;
