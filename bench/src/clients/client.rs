//! What every way of taking a lock looks like to the measuring.

use anyhow::Result;

/// One client of one lock.
pub(crate) trait Client: Send + 'static {
    /// Takes the lock, waiting if it must, and gives a number that rises from holder to holder.
    fn acquire(&mut self) -> impl Future<Output = Result<u64>> + Send;

    /// Gives it back.
    fn release(&mut self) -> impl Future<Output = Result<()>> + Send;
}
