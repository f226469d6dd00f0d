//! What can be set about the Terraform backend.

use leasehold::model::Ttl;

/// Settings of the Terraform backend.
#[derive(Debug, Clone, Copy)]
pub struct TerraformOptions {
    /// How long a lock lasts from LOCK and from each write of the state. The client gives no signs of life in between, so
    /// this has to be longer than the longest step of an apply. `?ttl=2h` in the client's `lock_address` sets another.
    pub ttl: Ttl,
    /// The largest state.
    pub state_bytes: usize,
    /// So many earlier versions of a state are kept.
    pub versions: usize,
    /// So long an earlier version is kept, from when it was written.
    pub versions_for: Ttl,
}

impl Default for TerraformOptions {
    fn default() -> Self {
        Self {
            ttl: Ttl::from_secs(24 * 3600),
            state_bytes: 32 * 1024 * 1024,
            versions: 50,
            versions_for: Ttl::from_secs(90 * 24 * 3600),
        }
    }
}
