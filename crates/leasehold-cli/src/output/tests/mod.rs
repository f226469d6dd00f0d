//! Fixtures shared by the tests of this folder.

pub(super) mod fixture;
