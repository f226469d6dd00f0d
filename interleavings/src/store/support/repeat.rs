//! Whether an operation may be sent again, as far as the batcher needs it.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    Safe,
    Unsafe,
}
