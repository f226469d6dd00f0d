//! `github://OWNER/REPO`, on the GitHub of the library's own tests.

mod agents;
#[path = "../../../../../leasehold/tests/it/engines/github/fake/mod.rs"]
#[expect(dead_code, unused_imports, reason = "the library's tests use all of it")]
mod fake;
mod locks;
mod tasks;
