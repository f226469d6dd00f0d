//! The calls on locks, and who may make them.

use std::sync::Arc;

use axum::response::Response;
use leasehold::model::{Acquire, Ask, ForceRelease, LeaseId, LockName, LockOp, Outcome, RequestRelease, Ttl};
use leasehold::store::protocol::LockCall;
use leasehold::store::{ListEvents, ListLocks, Store, notify_holders};

use super::routes::answer;
use super::stamp::Terms;
use super::tasks::MOST_AT_ONCE;
use crate::access::{Caller, Reader, Role, Who};
use crate::body::parse;
use crate::problem::{Answer, Problem};
use crate::server::App;

pub(super) async fn call(
    app: &App,
    caller: &Caller<Reader>,
    call: LockCall,
    terms: &Terms,
    body: &[u8],
) -> Answer<Response> {
    let store = app.leasehold().store();
    let locks = store.locks();
    match call {
        LockCall::Apply => {
            let (name, op) = parse(body)?;
            apply(app, caller, terms, name, op).await
        }
        LockCall::Get => {
            let (name,): (LockName,) = parse(body)?;
            caller.who().must_reach_lock(&name)?;
            answer(locks.get(&name).await)
        }
        LockCall::Peek => {
            let (name, waiter): (LockName, LeaseId) = parse(body)?;
            caller.who().must_reach_lock(&name)?;
            answer(locks.peek(&name, &waiter).await)
        }
        LockCall::List => {
            let (mut ask,): (ListLocks,) = parse(body)?;
            ask.limit = ask.limit.min(MOST_AT_ONCE);
            caller.who().must_reach_locks(ask.prefix.as_deref())?;
            answer(locks.list(&ask).await)
        }
        LockCall::History => {
            let (mut ask,): (ListEvents,) = parse(body)?;
            ask.limit = ask.limit.min(MOST_AT_ONCE);
            match &ask.lock {
                Some(name) => caller.who().must_reach_lock(name)?,
                None => caller.who().must_reach_all()?,
            }
            answer(locks.history(&ask).await)
        }
        LockCall::Now => answer(locks.now().await),
        LockCall::Sweep => {
            caller.must_be(Role::Worker)?;
            caller.who().must_reach_all()?;
            let (limit,): (u32,) = parse(body)?;
            answer(locks.sweep(limit.min(MOST_AT_ONCE)).await)
        }
        LockCall::Forget => {
            caller.must_be(Role::Operator)?;
            caller.who().must_reach_all()?;
            let (idle, limit): (Ttl, u32) = parse(body)?;
            answer(locks.forget(idle, limit.min(MOST_AT_ONCE)).await)
        }
    }
}

/// For one lease id, one at a time; and none whose caller has given it up. Whatever has begun is over before the next
/// begins, or was dropped, and then the engine keeps the order.
async fn apply(
    app: &App,
    caller: &Caller<Reader>,
    terms: &Terms,
    name: LockName,
    op: LockOp,
) -> Answer<Response> {
    caller.must_be(role(&op)?)?;
    caller.who().must_reach_lock(&name)?;
    let op = match signed(without_process(op), caller.who()) {
        LockOp::Renew(renew) if app.logs_renewals() => LockOp::RenewLogged(renew),
        op => op,
    };
    let store = app.leasehold().store();
    let Some(lease) = op.lease_id() else {
        return answer(apply_and_notify(&*store, &name, &op).await);
    };
    let Some(call) = terms.call else {
        return Err(Problem::invalid("this request does not say which call of whom it is"));
    };
    if matches!(&op, LockOp::Acquire(Acquire { queue: Some(_), .. })) {
        // Before it draws a ticket, so that no wake-up is missed.
        app.store_desk().sessions.of(call.client).await_turn(&store, lease);
    }
    // Before the time of the request is checked: the owner may have to be read from the store.
    if !matches!(op, LockOp::Acquire(_)) {
        app.owners().check(&*store, caller.who(), &name, lease).await?;
    }
    let place = app.store_desk().lines.enter(lease).await;
    terms.must_be_in_time(app)?;
    place.must_be_the_last(call)?;
    let applied = apply_and_notify(&*store, &name, &op).await;
    drop(place);
    match &applied {
        Ok(Outcome::Granted(lease)) => {
            // A caller that asks with the id of another caller's request is granted that caller's lease.
            caller.who().must_own(&lease.ask)?;
            app.owners().note(&name, lease);
        }
        Ok(Outcome::Released(_) | Outcome::Left) => app.owners().forget(&name, lease),
        _ => {}
    }
    answer(applied)
}

/// With the caller's token in what it takes, and beside what it says of itself.
fn signed(op: LockOp, who: &Who) -> LockOp {
    match op {
        LockOp::Acquire(Acquire { ask, queue, steal_after }) => {
            let mut ask = Arc::unwrap_or_clone(ask);
            who.stamp(&mut ask.metadata);
            LockOp::Acquire(Acquire { ask: Arc::new(ask), queue, steal_after })
        }
        LockOp::RequestRelease(ask) => {
            LockOp::RequestRelease(RequestRelease { by: who.signed(ask.by), ..ask })
        }
        LockOp::ForceRelease(force) => {
            LockOp::ForceRelease(ForceRelease { by: who.signed(force.by), ..force })
        }
        op => op,
    }
}

/// A client cannot reach the other clients of this server: the server notifies them.
async fn apply_and_notify(store: &dyn Store, name: &LockName, op: &LockOp) -> leasehold::Result<Outcome> {
    let applied = store.locks().apply(name, op).await;
    let is_plain_renewal =
        matches!(op, LockOp::Renew(renew) | LockOp::RenewLogged(renew) if renew.ttl.is_none());
    if let Ok(outcome) = &applied
        && !is_plain_renewal
    {
        notify_holders(store, name, outcome).await;
    }
    applied
}

fn role(op: &LockOp) -> Answer<Role> {
    match op {
        // A lease that its holder still may count on is taken from it, or its holder is asked for it.
        LockOp::Acquire(Acquire { steal_after: Some(_), .. }) | LockOp::RequestRelease(_) => {
            Ok(Role::Operator)
        }
        LockOp::Acquire(_)
        | LockOp::Renew(_)
        | LockOp::RenewLogged(_)
        | LockOp::Release(_)
        | LockOp::Leave(_) => Ok(Role::Worker),
        LockOp::Sweep(sweep) if sweep.dead.is_empty() => Ok(Role::Worker),
        LockOp::ForceRelease(_) => Ok(Role::Admin),
        LockOp::Sweep(_) | LockOp::Restarted(_) => {
            let detail = "that processes are gone or a machine has started anew is known to the engine alone";
            Err(Problem::new("FORBIDDEN", detail))
        }
    }
}

/// The caller's processes are not on the engine's host, and must not be taken for one that is.
fn without_process(op: LockOp) -> LockOp {
    match op {
        LockOp::Acquire(Acquire { ask, queue, steal_after }) if ask.process.is_some() => {
            let ask = Arc::new(Ask { process: None, ..Arc::unwrap_or_clone(ask) });
            LockOp::Acquire(Acquire { ask, queue, steal_after })
        }
        op => op,
    }
}
