//! `run`, up to the plan: the rest is in `crate::run`.

use leasehold::store::StoreUrl;

use super::dispatch::CommandResult;
use super::request::Request;
use crate::cli::RunArgs;
use crate::config::{StoreChoice, containment};
use crate::output::{Failure, Printer};
use crate::run::RunPlan;

pub(super) fn run(args: RunArgs, store: &StoreChoice, printer: Printer) -> CommandResult {
    Ok(crate::run::run(&plan(args, store, printer)?))
}

fn plan(args: RunArgs, store: &StoreChoice, printer: Printer) -> Result<RunPlan, Failure> {
    StoreUrl::parse(&store.url)?;
    let RunArgs { lock, options, .. } = args;
    let request = Request::new(lock, &options, &args.command)?;
    let mut metadata = request.metadata;
    metadata.push(("pid".to_owned(), std::process::id().to_string()));
    Ok(RunPlan {
        store_url: store.absolute(),
        locks: request.locks,
        ttl: request.ttl,
        wait_timeout: options.wait,
        mode: options.mode(),
        slots: options.slots(),
        priority: options.priority(),
        steal_stale: options.steal_stale,
        renew_at: args.renew_at,
        kill_after: args.kill_after,
        max_runtime: args.max_runtime,
        contain: containment(args.contain)?,
        at_least: args.at_least,
        conflict_exit: options.conflict_exit_code,
        reason: options.reason,
        holder: Some(request.holder),
        holder_is_explicit: options.holder.is_some(),
        metadata,
        command: args.command,
        quiet: printer.quiet,
        json: printer.json,
    })
}
