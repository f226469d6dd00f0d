//! Conformance suite of tasks, with two connections to one file.

use leasehold::testing::tasks_agree_with_the_rules;

use crate::engines::sqlite::suite::fresh;

leasehold::task_conformance!(crate::engines::sqlite::suite::fresh);

mod docs {
    leasehold::doc_conformance!(crate::engines::sqlite::suite::fresh);
}

#[test]
fn they_agree_with_the_rules() {
    tasks_agree_with_the_rules(64, fresh);
}
