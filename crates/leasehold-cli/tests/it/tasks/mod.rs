//! Tasks from the shell.

mod adding;
mod changing;
mod killed;
mod looking;
mod race;
mod shop;
mod working;
mod wrong;
