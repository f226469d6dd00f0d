//! Tests of what cannot be seen from outside.

mod costs;
