//! The conformance suite, on one server and on a Cluster.

use leasehold::testing::{Fixture, agrees_with_the_rules};

use super::support::fresh_at;
use crate::engines::support::engine_at;

pub(super) async fn fresh() -> Fixture {
    fresh_at(&engine_at("redis")).await
}

pub(super) async fn fresh_on_cluster() -> Fixture {
    fresh_at(&engine_at("redis-cluster")).await
}

mod locks {
    leasehold::lock_conformance!(crate::engines::redis::suite::fresh);
}

mod cluster {
    leasehold::lock_conformance!(crate::engines::redis::suite::fresh_on_cluster);
}

#[test]
fn it_agrees_with_the_rules() {
    agrees_with_the_rules(64, fresh);
}

#[test]
fn a_cluster_agrees_with_the_rules() {
    agrees_with_the_rules(32, fresh_on_cluster);
}

mod docs {
    leasehold::doc_conformance!(crate::engines::redis::suite::fresh);
}

mod docs_of_a_cluster {
    leasehold::doc_conformance!(crate::engines::redis::suite::fresh_on_cluster);
}
