//! Access to the data of a mutex.

use std::sync::PoisonError;

use crate::store::support::sync::{Mutex, MutexGuard};

/// Locks a mutex, even if a thread that held it has panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
