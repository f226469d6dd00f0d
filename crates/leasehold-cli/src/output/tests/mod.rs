//! What the tests of this folder share.

pub(super) mod fixture;
