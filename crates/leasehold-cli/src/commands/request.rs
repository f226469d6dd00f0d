//! Lock request of `run` and `locks acquire`, validated as a whole before any side effect.

use std::ffi::OsString;

use leasehold::model::{Holder, LockName, Metadata, Ttl};

use crate::cli::LockOptions;
use crate::identity::Identity;
use crate::output::Failure;

/// Requested locks and their holder.
pub(super) struct Request {
    /// Locks in the order in which they were named, without duplicates.
    pub(super) locks: Vec<LockName>,
    pub(super) holder: Holder,
    /// Duration of the leases.
    pub(super) ttl: Ttl,
    /// Metadata, without the reason, which is a separate field.
    pub(super) metadata: Vec<(String, String)>,
}

impl Request {
    /// Validates the request. `command` is shown to users as the work that the lock is for.
    pub(super) fn new(lock: LockName, options: &LockOptions, command: &[OsString]) -> Result<Self, Failure> {
        let mut locks = vec![lock];
        for lock in &options.with {
            if locks.contains(lock) {
                return Err(Failure::usage(format!("lock '{lock}' is named twice")));
            }
            locks.push(lock.clone());
        }
        let me = Identity::current();
        let holder = match &options.holder {
            Some(holder) => holder.clone(),
            None => me.holder()?,
        };
        let mut metadata = me.metadata(command);
        metadata.extend(options.meta.iter().cloned());
        let mut all = Metadata::default();
        let reason = options.reason.iter().map(|reason| ("reason".to_owned(), reason.to_string()));
        for (key, value) in metadata.iter().cloned().chain(reason) {
            all.set(key, value)?;
        }
        Ok(Self { locks, holder, ttl: options.ttl()?, metadata })
    }
}
