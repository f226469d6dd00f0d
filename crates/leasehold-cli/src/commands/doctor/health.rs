//! Runs the checks in order, from the outside in: a failed check makes the remaining ones
//! pointless.

use std::time::Duration;

use leasehold::store::ListLocks;
use leasehold::{BootInstant, Leasehold};

use super::checks;
use super::report::{Check, Report};
use crate::commands::dispatch::CommandResult;
use crate::config::StoreChoice;
use crate::exit;
use crate::output::{Failure, Printer};
use crate::run::SupportedModes;

pub(in crate::commands) async fn doctor(
    store: Result<StoreChoice, Failure>,
    supported: SupportedModes,
    printer: Printer,
) -> CommandResult {
    let mut checks = vec![checks::version(), checks::containment(&supported)];
    let code = match check_health(store, &mut checks).await {
        Ok(()) => exit::SUCCESS,
        Err(failure) => {
            checks.push(Check::failed("store", &failure));
            failure.exit
        }
    };
    let report = Report::new(checks);
    printer.result(&report, |style| report.text(style))?;
    Ok(code)
}

async fn check_health(store: Result<StoreChoice, Failure>, found: &mut Vec<Check>) -> Result<(), Failure> {
    let store = store?;
    found.push(checks::chosen_store(&store));
    let leasehold = Leasehold::connect(&store.url).await?;
    found.push(checks::reachable(&leasehold.url()));
    found.push(checks::round_trip(measure_round_trip(&leasehold).await?));
    found.push(checks::clock(leasehold.now().await?, jiff::Timestamp::now()));
    found.push(checks::engine(&leasehold.capabilities()));
    found.extend(leasehold.check_health().await?.into_iter().map(Check::from));
    found.push(checks::processes(&leasehold.capabilities()));
    Ok(())
}

/// Measures the duration of a read. The first response does not count: it may have to wait for the
/// store to open.
async fn measure_round_trip(leasehold: &Leasehold) -> Result<Duration, Failure> {
    let one = ListLocks { limit: 1, ..ListLocks::default() };
    leasehold.list(&one).await?;
    let sent = BootInstant::now();
    leasehold.list(&one).await?;
    Ok(BootInstant::now().after(sent))
}
