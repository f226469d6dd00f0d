//! Options of the Terraform backend.

use leasehold::model::Ttl;

/// Options of the Terraform backend.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct TerraformOptions {
    /// TTL of a lock, counted from LOCK and from each write of the state. The client sends no
    /// heartbeats in between, so the TTL has to exceed the longest step of an apply. `?ttl=2h` in
    /// the client's `lock_address` overrides it.
    pub ttl: Ttl,
    /// Maximum size of a state.
    pub state_bytes: usize,
    /// Maximum number of earlier versions that are kept.
    pub versions: usize,
    /// Maximum age of an earlier version, counted from its write.
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
