//! leasehold: work that runs in one place at a time, across processes, machines and engines.

mod error;
pub mod model;
pub mod store;

pub use error::{Error, Result, Trouble};
pub use store::Moment;
