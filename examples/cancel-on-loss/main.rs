//! Work that is dropped when its lease is lost, and a resource that refuses old tokens.
//!
//! `cargo run -p leasehold --example cancel-on-loss`

use std::sync::Mutex;
use std::time::Duration;

use leasehold::model::{Fence, Holder, LockName, Reason, Token};
use leasehold::{Error, Leasehold};

/// Resource with one writer at a time: it stores the highest token that it has seen, and refuses lower ones.
#[derive(Default)]
struct Report {
    fence: Mutex<Fence>,
}

impl Report {
    fn write(&self, token: Token, line: &str) -> Result<(), Error> {
        self.fence.lock().expect("no thread panics while it holds the mutex").admit(token)?;
        println!("  written under token {token}: {line}");
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let leasehold = Leasehold::connect("memory:").await?;
    let report = Report::default();
    let name = LockName::new("nightly-report")?;

    println!("a first worker acquires the lock and begins:");
    let guard = leasehold.lock(&name).holder("worker-1").ttl(Duration::from_millis(600)).acquire().await?;
    let token = guard.token();
    let work = guard.run(async |lease| {
        report.write(lease.token(), "page 1")?;
        std::future::pending::<()>().await; // A long computation…
        report.write(lease.token(), "page 2")
    });

    let by_force = async {
        println!("meanwhile an operator takes the lock by force, and a second worker acquires it:");
        leasehold.locks().force_release(&name, token, Holder::new("ada")?, Reason::new("stuck")?).await?;
        leasehold.lock(&name).holder("worker-2").acquire().await
    };
    let (first, second) = tokio::join!(work, by_force);
    match first {
        Err(error) => println!("the work of the first worker was dropped: {error}"),
        Ok(_) => unreachable!("its lease was taken by force"),
    }
    report.write(second?.token(), "page 1 again")?;

    println!("a late write of the first worker has an old token:");
    match report.write(token, "page 2") {
        Err(error) => println!("  refused: {error}"),
        Ok(()) => unreachable!("the report has seen a newer token"),
    }
    Ok(())
}
