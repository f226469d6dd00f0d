//! Primitives of the concurrent parts whose interleavings are checked. Here they are the real ones;
//! `interleavings/` compiles those parts a second time, with simulated ones.

pub(crate) use std::sync::{LazyLock, Mutex, MutexGuard, atomic};

pub(crate) use tokio::time::timeout;
