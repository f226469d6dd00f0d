//! Simulated primitives, and helpers of the checks.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Deref;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shuttle::future::yield_now;
use shuttle::rand::{Rng, thread_rng};

pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};

/// Static value that is new in each execution.
pub(crate) struct LazyLock<T> {
    init: fn() -> T,
}

thread_local! {
    /// Values of the current execution, by the address of their static. All tasks of an execution run
    /// on one thread.
    static STATICS: RefCell<HashMap<usize, &'static (dyn Any + Sync)>> = RefCell::default();
}

impl<T> LazyLock<T> {
    pub(crate) const fn new(init: fn() -> T) -> Self {
        Self { init }
    }
}

impl<T: Any + Sync> Deref for LazyLock<T> {
    type Target = T;

    fn deref(&self) -> &T {
        let address = std::ptr::from_ref(self).addr();
        let known = STATICS.with_borrow(|statics| statics.get(&address).copied());
        let value = known.unwrap_or_else(|| {
            let value: &'static (dyn Any + Sync) = Box::leak(Box::new((self.init)()));
            STATICS.with_borrow_mut(|statics| *statics.entry(address).or_insert(value))
        });
        (value as &dyn Any).downcast_ref().expect("a static has one type")
    }
}

/// Begins an execution: the values of statics are those of an earlier one.
pub(crate) fn forget_statics() {
    STATICS.with_borrow_mut(HashMap::clear);
}

/// Waits without a timeout: a lost notification must not be hidden by polling.
pub(crate) async fn timeout<F: Future>(_: Duration, future: F) -> Result<F::Output, ()> {
    Ok(future.await)
}

/// Waits for the end of a future, or drops it as [`polled`] does. Returns its output unless it was
/// dropped.
pub(crate) async fn maybe_cancelled<F: Future>(future: F) -> Option<F::Output> {
    if thread_rng().gen_ratio(1, 4) { Some(future.await) } else { polled(future).await }
}

/// Polls a future a random number of times, and drops it unless it has ended.
pub(crate) async fn polled<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..thread_rng().gen_range(0..4) {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(output);
        }
        yield_now().await;
    }
    None
}

/// Polls a future once.
pub(crate) fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
