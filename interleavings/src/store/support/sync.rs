//! Simulated primitives in place of the real ones.

pub(crate) use crate::simulated::{LazyLock, Mutex, MutexGuard, atomic, timeout};
