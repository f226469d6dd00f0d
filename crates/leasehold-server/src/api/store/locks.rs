//! Lock calls of the store protocol and the roles that they require.

use std::sync::Arc;

use axum::response::Response;
use leasehold::BootInstant;
use leasehold::model::{Acquire, ForceRelease, LeaseId, LockName, LockOp, Outcome, RequestRelease, Ttl};
use leasehold::store::protocol::LockCall;
use leasehold::store::{ListEvents, ListLocks, Store, notify_holders, notify_in_doubt};

use super::deadline::{RequestDeadline, json_result};
use super::tasks::MAX_PER_CALL;
use crate::access::{Identity, LeaseUse, Role};
use crate::problem::{ApiResult, Problem};
use crate::request::body::parse;
use crate::server::App;

pub(super) async fn call(
    app: &App,
    caller: &Identity,
    call: LockCall,
    deadline: &RequestDeadline,
    body: &[u8],
) -> ApiResult<Response> {
    let store = app.leasehold.store();
    let locks = store.locks();
    match call {
        LockCall::Apply => {
            let (name, op) = parse(body)?;
            apply(app, caller, deadline, name, op).await
        }
        LockCall::Get => {
            let (name,): (LockName,) = parse(body)?;
            caller.must_reach_lock(&name)?;
            json_result(locks.get(&name).await)
        }
        LockCall::Peek => {
            let (name, waiter): (LockName, LeaseId) = parse(body)?;
            caller.must_reach_lock(&name)?;
            json_result(locks.peek(&name, &waiter).await)
        }
        LockCall::List => {
            let (mut query,): (ListLocks,) = parse(body)?;
            query.limit = query.limit.min(MAX_PER_CALL);
            caller.must_reach_locks(query.prefix.as_deref())?;
            json_result(locks.list(&query).await)
        }
        LockCall::History => {
            let (mut query,): (ListEvents,) = parse(body)?;
            query.limit = query.limit.min(MAX_PER_CALL);
            match &query.lock {
                Some(name) => caller.must_reach_lock(name)?,
                None => caller.must_reach_all()?,
            }
            json_result(locks.history(&query).await)
        }
        LockCall::Now => json_result(locks.now().await),
        LockCall::Sweep => {
            caller.must_be(Role::Worker)?;
            caller.must_reach_all()?;
            let (limit,): (u32,) = parse(body)?;
            json_result(locks.sweep(limit.min(MAX_PER_CALL)).await)
        }
        LockCall::Forget => {
            caller.must_be(Role::Operator)?;
            caller.must_reach_all()?;
            let (idle, limit): (Ttl, u32) = parse(body)?;
            json_result(locks.forget(idle, limit.min(MAX_PER_CALL)).await)
        }
    }
}

/// Applies an operation. Calls for one lease id run one at a time, and none runs after its client
/// has given it up. A call that has begun ends before the next one begins, or it was dropped, in
/// which case the engine keeps the order.
async fn apply(
    app: &App,
    caller: &Identity,
    deadline: &RequestDeadline,
    name: LockName,
    op: LockOp,
) -> ApiResult<Response> {
    caller.must_be(role(&op)?)?;
    caller.must_reach_lock(&name)?;
    let op = match signed(op, caller) {
        LockOp::Renew(renew) if app.options.audit.renewals => LockOp::RenewLogged(renew),
        op => op,
    };
    let store = app.leasehold.store();
    let Some(lease) = op.lease_id() else {
        return json_result(apply_and_notify(&store, &name, &op).await);
    };
    let Some(call) = deadline.call else {
        return Err(Problem::invalid("the request has no header leasehold-call"));
    };
    // Before the deadline is checked, because the owner may have to be read from the store. An acquire
    // too: it renews the lease, or refreshes or removes the ticket, of an earlier request with its id.
    app.owners.check(&*store, caller, &name, lease, LeaseUse::of(&op)).await?;
    if matches!(&op, LockOp::Acquire(Acquire { queue: Some(_), .. })) {
        // Before the operation creates a ticket, so that no notification is missed.
        app.protocol_state.sessions.of(call.client).subscribe_waiter(&store, lease);
    }
    let key = (caller.name.clone(), name.clone(), lease);
    let mut turn = app.protocol_state.lease_order.enter(key).await;
    deadline.must_be_in_time(app)?;
    turn.must_be_the_last(call)?;
    let sent = BootInstant::now();
    let applied = apply_and_notify(&store, &name, &op).await;
    drop(turn);
    match &applied {
        Ok(Outcome::Granted(granted)) => {
            // The store grants a request with the lease id of another caller that caller's lease, which
            // may have been acquired after the check.
            if let Err(problem) = caller.must_own(&granted.request) {
                app.owners.remove(&name, lease);
                return Err(problem);
            }
            app.owners.record(&name, granted);
        }
        Ok(Outcome::Queued(_)) => {
            // A waiter refreshes its ticket repeatedly, so the check must not read the queue each time.
            if let LockOp::Acquire(Acquire { request, queue: Some(ttl), .. }) = &op {
                app.owners.record_ticket(&name, request, *ttl, sent);
            }
        }
        Ok(Outcome::Conflict(_) | Outcome::Released(_) | Outcome::Withdrawn | Outcome::NotHeld(_)) => {
            app.owners.remove(&name, lease);
        }
        _ => {}
    }
    json_result(applied)
}

/// Records the caller's API token in the lease, and beside the name that the caller claims. Removes the
/// process from an acquire: it is not on the engine's host and must not be mistaken for a local one.
fn signed(op: LockOp, identity: &Identity) -> LockOp {
    match op {
        LockOp::Acquire(Acquire { request, queue, steal_after }) => {
            let mut request = Arc::unwrap_or_clone(request);
            request.process = None;
            identity.stamp(&mut request.metadata);
            LockOp::Acquire(Acquire { request: Arc::new(request), queue, steal_after })
        }
        LockOp::RequestRelease(request) => {
            LockOp::RequestRelease(RequestRelease { by: identity.signed(request.by), ..request })
        }
        LockOp::ForceRelease(force) => {
            LockOp::ForceRelease(ForceRelease { by: identity.signed(force.by), ..force })
        }
        op => op,
    }
}

/// Applies an operation and notifies the holders on behalf of the client, which cannot reach them.
async fn apply_and_notify(
    store: &Arc<dyn Store>,
    name: &LockName,
    op: &LockOp,
) -> leasehold::Result<Outcome> {
    let applied = store.locks().apply(name, op).await;
    let is_plain_renewal =
        matches!(op, LockOp::Renew(renew) | LockOp::RenewLogged(renew) if renew.ttl.is_none());
    let is_in_doubt = match &applied {
        // The client repeats these if it misses the response: an earlier attempt may have ended the lease.
        Ok(Outcome::NotHeld(_)) => matches!(op, LockOp::Release(_) | LockOp::ForceRelease(_)),
        Ok(_) => false,
        Err(error) => error.is_retryable(),
    };
    match &applied {
        _ if is_in_doubt => {
            // The client does not wait for this, and may have disconnected already.
            let (store, name, op) = (store.clone(), name.clone(), op.clone());
            tokio::spawn(async move { notify_in_doubt(&*store, &name, &op).await });
        }
        Ok(outcome) if !is_plain_renewal => notify_holders(&**store, name, outcome).await,
        _ => {}
    }
    applied
}

fn role(op: &LockOp) -> ApiResult<Role> {
    match op {
        // Affects a lease that may still be valid for its holder.
        LockOp::Acquire(Acquire { steal_after: Some(_), .. }) | LockOp::RequestRelease(_) => {
            Ok(Role::Operator)
        }
        LockOp::Acquire(_)
        | LockOp::Renew(_)
        | LockOp::RenewLogged(_)
        | LockOp::Release(_)
        | LockOp::Withdraw(_) => Ok(Role::Worker),
        LockOp::Sweep(sweep) if sweep.dead.is_empty() => Ok(Role::Worker),
        LockOp::ForceRelease(_) => Ok(Role::Admin),
        LockOp::Sweep(_) | LockOp::Restarted(_) => {
            let detail = "only the engine itself can report dead processes or a restart of its host";
            Err(Problem::new("FORBIDDEN", detail))
        }
    }
}
