//! Tasks from the shell.

mod adding;
mod changing;
mod killed;
mod looking;
mod matrix;
mod race;
mod shop;
mod working;
mod wrong;
