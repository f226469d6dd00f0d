//! Tasks on Redis. All of them are on one node of a Cluster, because a lock counts across queues, a
//! worker may lease from several queues at once, and tasks that are added together are added
//! completely or not at all.

mod call;
mod codec;
mod enqueue;
mod enqueue_batch;
#[cfg(all(test, feature = "testing"))]
mod fuzz;
mod list;
mod notifier;
mod slow_path;
mod store;

pub(super) use call::Tasks;
