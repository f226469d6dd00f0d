//! The binary on Redis.

use super::support::engine_at;
use crate::support::Sandbox;
use crate::torture::is_fit;

#[test]
fn it_is_fit_under_faults() {
    let report = is_fit(&Sandbox::new(), &engine_at("redis"), None);
    assert_eq!(report["engine"], "redis");
}
