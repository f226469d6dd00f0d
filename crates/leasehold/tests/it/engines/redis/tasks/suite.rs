//! The conformance suite for tasks, on one server and on a Cluster.

use leasehold::testing::tasks_agree_with_the_rules;

use crate::engines::redis::suite::{fresh, fresh_on_cluster};

mod plain {
    leasehold::task_conformance!(crate::engines::redis::suite::fresh);
}

mod cluster {
    leasehold::task_conformance!(crate::engines::redis::suite::fresh_on_cluster);
}

#[test]
fn its_tasks_agree_with_the_rules() {
    tasks_agree_with_the_rules(48, fresh);
}

#[test]
fn the_tasks_of_a_cluster_agree_with_the_rules() {
    tasks_agree_with_the_rules(24, fresh_on_cluster);
}
