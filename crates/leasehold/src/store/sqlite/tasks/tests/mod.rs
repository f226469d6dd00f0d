//! Tests of internal properties.

mod costs;
