//! `run`, up to the plan, and the lock request that it shares with `locks acquire`, validated as a whole
//! before any side effect. The rest is in `crate::run`.

use std::ffi::OsString;

use leasehold::model::{Holder, LeaseRef, LockName, Metadata, Ttl};
use leasehold::store::StoreUrl;

use super::context::CommandResult;
use crate::cli::{LockOptions, RunArgs};
use crate::config::{StoreChoice, containment};
use crate::identity::Identity;
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
        check_deadlock: options.check_deadlock,
        holder: request.holder,
        holder_is_explicit: options.holder.is_some(),
        metadata,
        command: args.command,
        quiet: printer.quiet,
        json: printer.json,
    })
}

pub(super) struct Request {
    /// Locks in the order in which they were named, without duplicates.
    pub(super) locks: Vec<LockName>,
    pub(super) holder: Holder,
    pub(super) ttl: Ttl,
    /// Metadata, without the reason, which is a separate field.
    pub(super) metadata: Vec<(String, String)>,
    /// Leases that the request is made within.
    pub(super) within: Vec<LeaseRef>,
}

impl Request {
    /// Validates the request. `command` is shown to users as the work that the lock is for.
    pub(super) fn new(lock: LockName, options: &LockOptions, command: &[OsString]) -> Result<Self, Failure> {
        let mut locks = vec![lock];
        for lock in &options.with {
            if locks.contains(lock) {
                return Err(Failure::usage(format!("lock '{lock}' is named twice")));
            }
            locks.push(lock.clone());
        }
        let me = Identity::current();
        let holder = match &options.holder {
            Some(holder) => holder.clone(),
            None => me.holder()?,
        };
        let mut metadata = me.metadata(command);
        metadata.extend(options.meta.iter().cloned());
        let mut all = Metadata::default();
        let reason = options.reason.iter().map(|reason| ("reason".to_owned(), reason.to_string()));
        for (key, value) in metadata.iter().cloned().chain(reason) {
            all.set(key, value)?;
        }
        Ok(Self { locks, holder, ttl: options.ttl()?, metadata, within: Vec::new() })
    }
}
