//! Parts that several engines use.

pub mod batch_queue;
pub mod in_order;
pub(crate) mod mutex {
    include!(concat!(env!("OUT_DIR"), "/mutex.rs"));
}
pub(crate) mod repeat;
pub(crate) mod sync;
pub mod wake;
