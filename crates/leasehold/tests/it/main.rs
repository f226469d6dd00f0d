//! The integration tests of the library, in one binary: linking many costs more than it tells.

mod client;
mod engines;
mod model_check;
