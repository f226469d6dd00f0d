//! Sixteen clients in two processes compete for a lock.

use super::support::{at, new_table};

use crate::engines::race::{one_at_a_time, one_winner_each};

#[test]
fn of_sixteen_clients_in_two_processes_one_wins_each_round() {
    let url = url();
    one_winner_each(&url);
}

/// Few rounds: a waiter in the other process detects its grant only by polling.
#[test]
fn sixteen_clients_in_two_processes_have_the_lock_one_at_a_time() {
    let url = url();
    one_at_a_time(&url, 3);
}

fn url() -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(new_table(&at()))
}
