//! Model checks of the rules of locks and tasks, with mutants that each check must catch.

mod deadlock;
mod model_check;
mod shared;
mod task_check;
