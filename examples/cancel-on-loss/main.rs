//! Work that is dropped when its lease is lost, and a resource that checks tokens.
//!
//! `cargo run -p leasehold --example cancel-on-loss`

use std::sync::Mutex;
use std::time::Duration;

use leasehold::model::{Fence, Holder, LockName, Reason, Token};
use leasehold::{Error, Leasehold};

/// Something that must not be written to by two at once: it remembers the highest token that it has seen.
#[derive(Default)]
struct Report {
    fence: Mutex<Fence>,
}

impl Report {
    fn write(&self, token: Token, line: &str) -> Result<(), Error> {
        self.fence.lock().expect("nobody panics while holding it").admit(token)?;
        println!("  written under token {token}: {line}");
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let leasehold = Leasehold::connect("memory:").await?;
    let report = Report::default();
    let name = LockName::new("nightly-report")?;

    println!("a first worker takes the lock and begins:");
    let guard = leasehold.lock(&name).holder("worker-1").ttl(Duration::from_millis(600)).acquire().await?;
    let token = guard.token();
    let work = guard.run(async |lease| {
        report.write(lease.token(), "page 1")?;
        std::future::pending::<()>().await; // A long computation…
        report.write(lease.token(), "page 2")
    });

    let by_force = async {
        println!("meanwhile somebody takes the lock away, and a second worker has it:");
        leasehold.locks().force_release(&name, token, Holder::new("ada")?, Reason::new("stuck")?).await?;
        leasehold.lock(&name).holder("worker-2").acquire().await
    };
    let (first, second) = tokio::join!(work, by_force);
    match first {
        Err(error) => println!("the first worker's work was dropped where it stood: {error}"),
        Ok(_) => unreachable!("its lease was taken away"),
    }
    report.write(second?.token(), "page 1 again")?;

    println!("a write of the first worker that was still on its way comes too late:");
    match report.write(token, "page 2") {
        Err(error) => println!("  refused: {error}"),
        Ok(()) => unreachable!("the report has seen a newer token"),
    }
    Ok(())
}
