//! Worker of a store that sometimes breaks one of its promises. Arguments: what it ignores, and the
//! number of operations of which one is wrong.

mod broken_store;

use std::sync::Arc;

use broken_store::{BrokenStore, Ignores};
use leasehold::Leasehold;

fn main() -> Result<(), leasehold_torture::Error> {
    let mut arguments = std::env::args().skip(1);
    let ignores = match arguments.next().as_deref() {
        Some("holder") => Ignores::Holder,
        Some("token") => Ignores::Token,
        Some("end") => Ignores::End,
        Some("owner") => Ignores::Owner,
        Some("task") => Ignores::Task,
        Some("key") => Ignores::Key,
        other => panic!("a store that ignores {other:?} is not known"),
    };
    let one_in = arguments.next().and_then(|number| number.parse().ok());
    let one_in = one_in.expect("the second argument is a number");
    leasehold_torture::run_worker_on(async |url: &str| {
        let store = Leasehold::connect(url).await?.store();
        Leasehold::with_store(Arc::new(BrokenStore::new(store, ignores, one_in)))
    })
}
