//! What the programs of both peers share: how much is asked for, how it is measured, and a database of their own.

pub mod database;
pub mod measure;
