//! Two processes, sixteen clients.

use super::support::{at, new_table};

#[test]
fn of_sixteen_clients_in_two_processes_one_wins_each_round() {
    let Some(at) = at() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = runtime.block_on(new_table(&at));
    crate::engines::race::one_winner_each(&url);
}
