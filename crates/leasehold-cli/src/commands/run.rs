//! `run`, up to the plan: the rest is in `crate::run`.

use leasehold::store::StoreUrl;

use super::dispatch::Done;
use super::request::Request;
use crate::cli::RunArgs;
use crate::config::{Choice, containment};
use crate::output::{Failure, Printer};
use crate::run::RunPlan;

pub(super) fn run(args: RunArgs, store: &Choice, printer: Printer) -> Done {
    Ok(crate::run::run(&plan(args, store, printer)?))
}

fn plan(args: RunArgs, store: &Choice, printer: Printer) -> Result<RunPlan, Failure> {
    StoreUrl::parse(&store.url)?;
    let RunArgs { lock, ask, .. } = args;
    let request = Request::new(lock, &ask, &args.command)?;
    let mut metadata = request.facts;
    metadata.push(("pid".to_owned(), std::process::id().to_string()));
    Ok(RunPlan {
        store_url: store.absolute(),
        locks: request.locks,
        ttl: request.ttl,
        patience: ask.wait,
        mode: ask.mode(),
        slots: ask.slots(),
        priority: ask.priority(),
        steal_stale: ask.steal_stale,
        renew_at: args.renew_at,
        kill_after: args.kill_after,
        max_runtime: args.max_runtime,
        contain: containment(args.contain)?,
        at_least: args.at_least,
        conflict_exit: ask.conflict_exit_code,
        reason: ask.reason,
        holder: Some(request.holder),
        holder_named: ask.holder.is_some(),
        metadata,
        command: args.command,
        quiet: printer.quiet,
        json: printer.json,
    })
}
