//! Task commands.

mod add;
mod events;
mod invalid_input;
mod killed;
mod logs;
mod matrix;
mod operate;
mod queries;
mod race;
mod support;
mod update;
mod work;
