//! Asking for locks, and waiting for them.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Extension;
use axum::extract::{ConnectInfo, State};
use axum::response::Response;
use leasehold::model::{Holder, LeaseId, LockName, Metadata, Mode, Priority, Slots};
use leasehold::{Backoff, BootInstant, Error, LockBuilder, Strategy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::delivery::Delivery;
use super::lease::{HeldLock, LockPath, lease_ttl, ttl, wait_time};
use crate::access::{Caller, Role, Worker};
use crate::body::MaybeJson;
use crate::described::{SomeSeconds, TtlSeconds, WaitSeconds};
use crate::problem::{Answer, Problem};
use crate::roles::routes;
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(acquire))
}

/// What is asked for. Everything has a default: no body at all asks for the lock for 30 s, and does not wait.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AcquireBody {
    /// Who asks; the name of the caller's API token if not said.
    #[schema(example = "ci-runner-7")]
    holder: Option<Holder>,
    /// How long the lease lasts unless it is renewed; by default 30, or as the server is set up.
    #[schema(value_type = Option<TtlSeconds>)]
    ttl_seconds: Option<f64>,
    /// How long to wait while somebody else has the lock, 60 at most; 0 if not said.
    #[schema(value_type = Option<WaitSeconds>)]
    wait_seconds: Option<f64>,
    /// Alone or with other shared holders; exclusive if not said.
    #[serde(default)]
    mode: Mode,
    /// One of at most so many holders; 1 if not said.
    #[schema(value_type = Option<Slots>)]
    slots: Option<u32>,
    /// Weight in the queue, -1000 to 1000: one step counts as having come 30 s earlier.
    #[schema(value_type = Option<Priority>)]
    priority: Option<i32>,
    /// What to do while somebody else has the lock. If not said: `wait` with `waitSeconds`, else `failFast`.
    strategy: Option<How>,
    /// Also take a lease that has not been renewed for so long, although its ttl still runs.
    #[schema(value_type = Option<SomeSeconds>)]
    stale_after_seconds: Option<f64>,
    /// Names the lease, a UUID of your own making: asking again with the same one gives the same lease and token. For
    /// one lock only.
    lease_id: Option<LeaseId>,
    /// When the wait is over in vain, keep the place in the queue for 10 s, for the next request with the same `leaseId`:
    /// so one can wait for longer than a request may.
    #[serde(default)]
    keep_ticket: bool,
    /// Other locks to take at the same time: all or none.
    #[serde(default)]
    with: Vec<LockName>,
    /// Facts for people who look at the lock. `address` is the client's if not given.
    #[serde(default)]
    metadata: Metadata,
}

/// What to do while somebody else has the lock.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
enum How {
    /// Give up at once.
    FailFast,
    /// Ask again after 1, 2, 4, 8 and 16 s, as far as `waitSeconds` goes. No place in the queue.
    Retry,
    /// Stand in the fair queue for `waitSeconds`.
    Wait,
    /// Take it if it has not been renewed for `staleAfterSeconds`; else as if no strategy was given.
    StealStale,
}

/// The lock is yours.
#[derive(Serialize, ToSchema)]
struct Acquired {
    /// Always true.
    success: bool,
    /// The lease on the lock that the path names.
    lock: HeldLock,
    /// The leases on the other locks that were asked for, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    with: Vec<HeldLock>,
}

/// Take a lock, or wait for it.
///
/// The lease ends by itself after `ttlSeconds`; renew it for as long as the work goes on. If the connection breaks while
/// the request waits, the request is taken back at once; with a `leaseId` its place is kept for 10 s, for the same request
/// on another connection.
#[utoipa::path(
    post, path = "/api/v1/locks/{name}/acquire", tag = "locks", operation_id = "acquireLock",
    params(("name" = LockName, Path, description = "The lock; a '/' is written %2F")),
    request_body = Option<AcquireBody>,
    responses(
        (status = OK, body = Acquired),
        (status = CONFLICT, description = "Somebody else has it, and the wait is over", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn acquire(
    State(app): State<App>,
    caller: Caller<Worker>,
    LockPath(name): LockPath,
    from: Option<Extension<ConnectInfo<SocketAddr>>>,
    MaybeJson(ask): MaybeJson<AcquireBody>,
) -> Answer<Response> {
    app.refuse_when_draining()?;
    let known = ask.lease_id.is_some();
    let lock = builder(&app, &caller, &name, ask, from.map(|from| from.0.0))?;
    // On the heap only while it waits: the handler's own size is paid by every request.
    let asked = app.unless_draining(async { Ok(Box::pin(lock.acquire()).await) }).await?;
    let guard = match asked {
        Ok(guard) => guard,
        Err(error) => return Err(refusal(&app, error).await),
    };
    // A caller that asks with the id of another caller's request is granted that caller's lease.
    if let Err(refused) = guard.leases().iter().try_for_each(|(_, lease)| caller.who().must_own(&lease.ask)) {
        guard.detach();
        return Err(refused);
    }
    for (name, lease) in guard.leases() {
        app.owners().note(&name, &lease);
    }
    let delivery = if known { Delivery::of_known(guard) } else { Delivery::of_unknown(guard) };
    if let Err(error) = delivery.guard().confirm().await {
        return Err(refusal(&app, error).await);
    }
    let leases = delivery.guard().leases();
    let (mine, others): (Vec<_>, Vec<_>) = leases.iter().partition(|(held, _)| *held == name);
    let (_, lease) = mine.first().expect("the lock that was asked for is among those that are held");
    let remaining = delivery.guard().watch().borrow().valid_until.after(BootInstant::now());
    let with = others.iter().map(|(name, lease)| HeldLock::of(name, lease, remaining)).collect();
    let answer = Acquired { success: true, lock: HeldLock::of(&name, lease, remaining), with };
    Ok(delivery.answer(&answer))
}

fn builder(
    app: &App,
    caller: &Caller<Worker>,
    name: &LockName,
    ask: AcquireBody,
    from: Option<SocketAddr>,
) -> Answer<LockBuilder> {
    let strategy = strategy(app, &ask)?;
    // The holder is elsewhere: whether this process lives says nothing about it.
    let mut lock = app.leasehold().lock(name).process(None).strategy(strategy);
    for other in ask.with {
        caller.who().must_reach_lock(&other)?;
        lock = lock.and(other);
    }
    lock = match ask.holder {
        Some(holder) => lock.holder(holder),
        None => lock.holder(caller.holder()?),
    };
    let asked = ask.ttl_seconds.map(|lasts| lease_ttl(app, lasts)).transpose()?;
    if let Some(ttl) = asked.or(app.default_ttl()) {
        lock = lock.ttl(ttl.as_duration());
    }
    if ask.mode == Mode::Shared {
        lock = lock.shared();
    }
    if let Some(slots) = ask.slots {
        lock = lock.slots(slots);
    }
    if let Some(priority) = ask.priority {
        lock = lock.priority(priority);
    }
    if let Some(after) = ask.stale_after_seconds {
        // A lease that its holder still may count on is taken from it.
        caller.must_be(Role::Operator)?;
        lock = lock.steal_stale(ttl("staleAfterSeconds", after)?.as_duration());
    }
    if let Some(id) = ask.lease_id {
        if id.as_uuid().is_nil() || id.as_uuid().is_max() {
            return Err(Problem::invalid(format!("{id} is no lease id of your own; make a random UUID")));
        }
        lock = lock.lease_id(id);
    }
    if ask.keep_ticket {
        lock = lock.keep_ticket();
    }
    let mut metadata = ask.metadata;
    if let (Some(from), None) = (from, metadata.get("address")) {
        // One fact too many is not the client's fault.
        let _ = metadata.set("address", from.ip().to_canonical().to_string());
    }
    caller.who().stamp(&mut metadata);
    Ok(metadata.iter().fold(lock, |lock, (key, value)| lock.meta(key, value)))
}

fn strategy(app: &App, ask: &AcquireBody) -> Answer<Strategy> {
    let longest = app.limits().wait;
    let patience = ask.wait_seconds.map(|wait| wait_time(app, wait)).transpose();
    let patience = patience.map_err(|problem| {
        problem.hint("to wait longer, ask again with the same leaseId and keepTicket: true")
    })?;
    let plain = match patience.unwrap_or_default() {
        Duration::ZERO if !ask.keep_ticket => Strategy::FailFast,
        patience => Strategy::Wait(Some(patience)),
    };
    // A wait that is shorter than the clock can tell is a wait too.
    let waits = ask.keep_ticket || ask.wait_seconds.is_some_and(|wait| wait > 0.0);
    match ask.strategy {
        Some(How::FailFast) if waits => Err(Problem::invalid(
            "failFast does not wait; leave waitSeconds away, or choose another strategy",
        )),
        Some(How::Retry) => Ok(Strategy::Retry(within(patience.unwrap_or(longest)))),
        Some(How::Wait) => Ok(Strategy::Wait(Some(patience.unwrap_or(longest)))),
        Some(How::StealStale) if ask.stale_after_seconds.is_none() => {
            Err(Problem::invalid("stealStale needs staleAfterSeconds: how long without a renewal is stale"))
        }
        None | Some(How::FailFast | How::StealStale) => Ok(plain),
    }
}

/// As many tries as there is patience for, even if chance makes every pause as long as it can be.
fn within(patience: Duration) -> Backoff {
    let all = Backoff::default();
    let pauses =
        (0..all.tries).map(|again| all.first.saturating_mul(1 << again).min(all.longest).mul_f64(1.25));
    let mut total = Duration::ZERO;
    let fit = pauses.take_while(|pause| {
        total += *pause;
        total <= patience
    });
    let tries = u32::try_from(fit.count()).unwrap_or(all.tries);
    Backoff { tries, ..all }
}

/// A conflict with the time after which asking again may help: when the first of those in the way ends.
async fn refusal(app: &App, error: Error) -> Problem {
    let Error::Conflict { conflict, .. } = &error else {
        return error.into();
    };
    let ends = conflict.holders.iter().map(|held| held.until).min();
    let problem =
        Problem::from(error).hint("wait for it with waitSeconds; GET /api/v1/locks/{name} says who has it");
    match (ends, app.leasehold().now().await) {
        (Some(ends), Ok(now)) => problem.retry_after(ends.since(now)),
        _ => problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_often_is_tried_again_as_there_is_patience_for() {
        let tries = |seconds| within(Duration::from_secs(seconds)).tries;
        assert_eq!([0, 1, 2, 4, 10, 38, 39, 60].map(tries), [0, 0, 1, 2, 3, 4, 5, 5]);
    }
}
