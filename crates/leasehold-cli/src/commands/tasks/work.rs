//! `tasks work`, up to the plan: the rest is in `crate::work`.

use leasehold::store::{Capabilities, StoreUrl};

use crate::cli::WorkArgs;
use crate::commands::dispatch::{Done, block_on};
use crate::config::{Choice, containment, lease_ttl};
use crate::output::Printer;
use crate::run::{Launcher, WorkerCommand};
use crate::work::{Until, WorkPlan};

pub(in crate::commands) fn work(args: WorkArgs, store: &Choice, printer: Printer) -> Done {
    StoreUrl::parse(&store.url)?;
    let until = match (args.once, args.until_empty) {
        (true, _) => Until::One,
        (_, true) => Until::Empty,
        _ => Until::Asked,
    };
    let store_url = store.absolute();
    let chosen = lease_ttl(args.ttl)?;
    let ttl = chosen.unwrap_or(Capabilities::TTL);
    let launcher = Launcher::new(WorkerCommand {
        command: args.command,
        store_url: store_url.clone(),
        ttl: ttl.as_duration(),
        kill_after: args.kill_after,
        contain: containment(args.contain)?,
    })?;
    let mut queues = args.queues;
    queues.sort_unstable();
    queues.dedup();
    let plan = WorkPlan {
        store_url,
        queues,
        slots: args.slots,
        ttl: chosen,
        kill_after: args.kill_after,
        grace: args.grace,
        max_runtime: args.max_runtime,
        recover_every: args.recover_every,
        until,
        launcher,
    };
    block_on(crate::work::work(plan, printer))
}
