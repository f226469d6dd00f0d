//! Tests of a worker that dies at any step, with its last request lost, executed without a
//! response, or executed late: there are never two holders of the task, a settled task does not run
//! again, and the next worker gets the task within the ttl and the margin.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{
    Acquire, AttemptResult, Cancel, ForceRelease, HeartbeatResult, Holder, LockName, LockOp, Outcome,
    Payload, Reason, Settled, TaskOp, TaskState,
};
use leasehold::store::Clock;

use super::support::{TTL, Worker, id, worker};
use crate::engines::github::fake::{Fake, Fate, Person};
use crate::engines::github::support::{GRACE, fake, test_client};

/// Number of requests that no operation exceeds.
const STEPS: u32 = 12;

/// Time at which a late request takes effect.
#[derive(Debug, Clone, Copy, PartialEq)]
enum LateEffect {
    AtOnce,
    AfterTheNextHolder,
}

struct Scenario {
    fake: Fake,
    clock: Clock,
    ada: Worker,
    bob: Worker,
    eve: Worker,
    issue: u64,
    step: u32,
    fate: Fate,
    then: LateEffect,
}

async fn for_each_step(run: impl AsyncFn(&Scenario)) {
    for step in 0..STEPS {
        for loss in [Fate::LoseRequest, Fate::LoseAnswer, Fate::Late] {
            for then in [LateEffect::AtOnce, LateEffect::AfterTheNextHolder] {
                let (fake, clock) = fake().await;
                let issue = fake.labelled_issue("Fix it", &["agent"]);
                let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
                let eve = worker(&fake, "eve").await;
                run(&Scenario { fake, clock, ada, bob, eve, issue, step, fate: loss.clone(), then }).await;
            }
        }
    }
}

impl Scenario {
    fn label(&self) -> String {
        format!("step {}, {:?}, {:?}", self.step, self.fate, self.then)
    }

    fn crash_ada(&self) {
        self.fake.crash("ada", self.step, self.fate.clone());
    }

    /// Executes the late requests, if they are to take effect before another worker comes.
    fn deliver_late(&self) {
        if self.then == LateEffect::AtOnce {
            self.fake.catch_up();
        }
    }

    fn advance(&self, time: Duration) {
        self.clock.advance(time);
    }

    fn advance_past_ttl(&self) {
        self.advance(TTL.as_duration() + Duration::from_millis(GRACE));
    }

    /// Lets bob lease and complete the task, whatever arrives late.
    async fn bob_completes_it(&self, attempts: std::ops::RangeInclusive<u32>) {
        let label = self.label();
        let task = self.bob.takes().await;
        assert!(attempts.contains(&task.attempt), "{label}: attempt {}", task.attempt);
        self.fake.catch_up();
        self.advance(Duration::from_secs(3));
        assert_eq!(
            self.bob.heartbeat(&task, None).await,
            HeartbeatResult::Extended(None),
            "{label}: the lease was lost"
        );
        assert!(self.eve.lease(1).await.is_empty(), "{label}: eve got it");
        assert_eq!(
            self.bob.settle(&task, AttemptResult::Done(None)).await,
            Settled::Now(TaskState::Succeeded),
            "{label}"
        );
        self.assert_stays_settled(TaskState::Succeeded).await;
    }

    /// Asserts that the task stays settled, whatever arrives late, and that the issue matches.
    async fn assert_stays_settled(&self, state: TaskState) {
        let label = self.label();
        self.fake.catch_up();
        for _ in 0..3 {
            self.advance_past_ttl();
            assert!(self.eve.lease(1).await.is_empty(), "{label}: it ran again");
        }
        assert_eq!(self.eve.get(self.issue).await.state, state, "{label}");
        let repo = self.fake.repo();
        let issue = &repo.issues[&self.issue];
        let failed = issue.labels.iter().any(|label| label == "leasehold:failed");
        assert_eq!(
            (issue.is_closed, failed),
            (state != TaskState::Failed, state == TaskState::Failed),
            "{label}"
        );
        // An assignment can take effect at any time, and cannot be told from that of a person.
        let is_late = self.fate == Fate::Late && self.then == LateEffect::AfterTheNextHolder;
        assert!(is_late || issue.assignees.is_empty(), "{label}: {:?} is still assigned", issue.assignees);
    }
}

#[tokio::test]
async fn during_a_lease() {
    for_each_step(async |scenario| {
        scenario.crash_ada();
        let leased = scenario.ada.try_lease(1).await;
        scenario.deliver_late();
        if leased.is_ok_and(|tasks| !tasks.is_empty()) {
            // Advances to the last moment of ada's lease.
            scenario.advance(TTL.as_duration().saturating_sub(Duration::from_secs(1)));
            assert!(scenario.bob.lease(1).await.is_empty(), "{}: two holders", scenario.label());
            scenario.advance(Duration::from_millis(GRACE + 1_000));
        } else {
            scenario.advance(Duration::from_millis(60_000 + GRACE));
        }
        scenario.bob_completes_it(1..=2).await;
    })
    .await;
}

#[tokio::test]
async fn during_a_lease_of_an_expired_task() {
    for_each_step(async |scenario| {
        scenario.eve.takes().await;
        scenario.advance_past_ttl();
        scenario.crash_ada();
        let leased = scenario.ada.try_lease(1).await;
        scenario.deliver_late();
        if leased.is_ok_and(|tasks| !tasks.is_empty()) {
            assert!(scenario.bob.lease(1).await.is_empty(), "{}: two holders", scenario.label());
        }
        scenario.advance_past_ttl();
        // Eve's attempt counts.
        scenario.bob_completes_it(2..=3).await;
    })
    .await;
}

#[tokio::test]
async fn during_a_recovery() {
    for_each_step(async |scenario| {
        scenario.eve.takes().await;
        scenario.advance_past_ttl();
        let tasks = scenario.ada.store.tasks().unwrap();
        assert_eq!(scenario.ada.lease(0).await.len(), 0, "it knows the queue");
        scenario.crash_ada();
        drop(tasks.recover(10).await);
        scenario.deliver_late();
        scenario.advance_past_ttl();
        scenario.bob_completes_it(2..=2).await;
    })
    .await;
}

#[tokio::test]
async fn during_a_heartbeat() {
    for_each_step(async |scenario| {
        let task = scenario.ada.takes().await;
        scenario.advance(Duration::from_secs(20));
        scenario.crash_ada();
        let result = scenario.ada.try_heartbeat(&task, None).await;
        scenario.deliver_late();
        let left = if matches!(result, Ok(HeartbeatResult::Extended(_))) { 59 } else { 39 };
        scenario.advance(Duration::from_secs(left));
        assert!(scenario.bob.lease(1).await.is_empty(), "{}: two holders", scenario.label());
        scenario.advance_past_ttl();
        scenario.bob_completes_it(2..=2).await;
    })
    .await;
}

#[tokio::test]
async fn during_a_settlement_as_done() {
    for_each_step(async |scenario| settles(scenario, AttemptResult::Done(None), TaskState::Succeeded).await)
        .await;
}

#[tokio::test]
async fn during_a_settlement_as_failed() {
    let why = leasehold::testing::task_fixture::why();
    for_each_step(async |scenario| {
        settles(scenario, AttemptResult::Fail(why.clone()), TaskState::Failed).await;
    })
    .await;
}

async fn settles(scenario: &Scenario, verdict: AttemptResult, state: TaskState) {
    let task = scenario.ada.takes().await;
    scenario.advance(Duration::from_secs(5));
    scenario.crash_ada();
    let settled = scenario.ada.try_settle(&task, verdict.clone()).await;
    scenario.deliver_late();
    scenario.advance_past_ttl();
    if let Ok(settled) = settled {
        assert_eq!(settled, Settled::Now(state), "{}", scenario.label());
        // If the issue does not match the task yet, the next client updates it.
        return scenario.assert_stays_settled(state).await;
    }
    let was_settled = scenario.eve.get(scenario.issue).await.state == state;
    if was_settled {
        scenario.assert_stays_settled(state).await;
    } else {
        scenario.bob_completes_it(2..=2).await;
    }
}

/// The last request of a live worker counts, whatever arrives late.
#[tokio::test]
async fn a_heartbeat_after_the_settlement_revives_nothing() {
    for verdict in [AttemptResult::Done(None), AttemptResult::Return] {
        let (fake, clock) = fake().await;
        let issue = fake.labelled_issue("Fix it", &["agent"]);
        let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
        let task = ada.takes().await;
        clock.advance(Duration::from_secs(5));
        fake.plan("PATCH /1000001", Fate::Late);
        assert!(ada.try_heartbeat(&task, None).await.unwrap_err().is_retryable());
        let is_done = matches!(verdict, AttemptResult::Done(_));
        let state = if is_done { TaskState::Succeeded } else { TaskState::Pending };
        assert_eq!(ada.settle(&task, verdict).await, Settled::Now(state));
        fake.catch_up();
        assert_eq!(ada.get(issue).await.state, state);
        clock.advance(TTL.as_duration() + Duration::from_millis(GRACE));
        assert_eq!(bob.lease(1).await.len(), usize::from(!is_done));
    }
}

/// An external worker of a task uses two servers: a heartbeat through the first one arrives late, and the second
/// one does not know of it.
#[tokio::test]
async fn a_late_heartbeat_of_another_process_revives_nothing() {
    for is_renewed in [true, false] {
        let (fake, clock) = fake().await;
        let issue = fake.labelled_issue("Fix it", &["agent"]);
        let (first, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
        let second = worker(&fake, "ada").await;
        let task = first.takes().await;
        clock.advance(Duration::from_secs(5));
        fake.plan("PATCH /1000001", Fate::Late);
        assert!(first.try_heartbeat(&task, None).await.unwrap_err().is_retryable());
        if is_renewed {
            assert_eq!(second.heartbeat(&task, None).await, HeartbeatResult::Extended(None));
        }
        let done = AttemptResult::Done(None);
        assert_eq!(second.settle(&task, done).await, Settled::Now(TaskState::Succeeded));
        fake.catch_up();
        assert_eq!(second.get(issue).await.state, TaskState::Succeeded, "renewed: {is_renewed}");
        clock.advance(TTL.as_duration() + Duration::from_millis(GRACE));
        assert!(bob.lease(1).await.is_empty(), "renewed: {is_renewed}");
    }
}

#[tokio::test]
async fn a_settlement_with_a_lost_response_is_repeated() {
    for fate in [Fate::LoseRequest, Fate::LoseAnswer, Fate::Late] {
        let (fake, clock) = fake().await;
        let issue = fake.labelled_issue("Fix it", &["agent"]);
        let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
        let task = ada.takes().await;
        fake.plan("PATCH /1000001", fate.clone());
        let done = || AttemptResult::Done(None);
        assert!(ada.try_settle(&task, done()).await.unwrap_err().is_retryable(), "{fate:?}");
        assert_eq!(ada.settle(&task, done()).await, Settled::Now(TaskState::Succeeded), "{fate:?}");
        fake.catch_up();
        clock.advance(TTL.as_duration() + Duration::from_millis(GRACE));
        assert!(bob.lease(1).await.is_empty(), "{fate:?}");
        let stored = bob.get(issue).await;
        assert_eq!((stored.state, stored.attempt), (TaskState::Succeeded, 1), "{fate:?}");
        assert!(fake.repo().issues[&issue].is_closed, "{fate:?}");
    }
}

/// The worker is alive but does not get the task: the record that it has taken over must not be
/// lost with its candidate.
#[tokio::test]
async fn a_worker_that_fails_after_clearing_keeps_the_task_record() {
    for fate in [Fate::LoseRequest, Fate::LoseAnswer] {
        let (fake, clock) = fake().await;
        fake.labelled_issue("Fix it", &["agent"]);
        let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
        worker(&fake, "eve").await.takes().await;
        clock.advance(TTL.as_duration() + Duration::from_millis(GRACE));
        // The candidate takes over the record in eve's claim; the edit that makes it a lease gets
        // no response.
        fake.plan("PATCH /1000002", Fate::Pass);
        fake.plan("PATCH /1000002", fate.clone());
        assert!(ada.try_lease(1).await.unwrap_err().is_retryable(), "{fate:?}");
        assert_eq!(bob.takes().await.attempt, 2, "{fate:?}: eve's attempt counts");
    }
}

/// The worker asks which tasks it has leased after the lease got no response. The withdrawal of that
/// lease may still arrive, so the worker must not run the task.
#[tokio::test]
async fn a_lease_that_was_withdrawn_is_not_extended() {
    let (fake, _) = fake().await;
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    fake.plan("PATCH /1000001", Fate::LoseAnswer);
    fake.plan("DELETE /1000001", Fate::Late);
    assert!(ada.try_lease(1).await.unwrap_err().is_retryable());
    let task = ada.get(issue).await;
    assert_eq!((task.state, task.worker), (TaskState::Running, Some(ada.id)));
    assert_eq!(ada.heartbeat(&task, None).await, HeartbeatResult::Lost);
    fake.catch_up();
    assert_eq!(bob.takes().await.attempt, 1);
}

/// Same as for a lease, on an issue whose task record the candidate has taken over.
#[tokio::test]
async fn a_late_withdrawal_ends_no_lock_and_loses_no_task_record() {
    let (fake, clock) = fake().await;
    // Neither is assigned, so no assignee keeps bob out.
    for login in ["ada", "eve"] {
        fake.person(login, Person { is_bot: false, association: "MEMBER", can_push: false });
    }
    fake.labelled_issue("Fix it", &["agent"]);
    let (ada, bob) = (test_client(&fake, "ada", "#1").await, test_client(&fake, "bob", "#1").await);
    worker(&fake, "eve").await.takes().await;
    clock.advance(TTL.as_duration() + Duration::from_millis(GRACE));
    // The candidate takes over the record; the edit that makes it a lease gets no response; the edit
    // that withdraws it arrives late.
    for fate in [Fate::Pass, Fate::LoseAnswer, Fate::Late] {
        fake.plan("PATCH /1000002", fate);
    }
    let request = Arc::new(ada.request.clone());
    let acquire = LockOp::Acquire(Acquire { request, queue: None, steal_after: None });
    assert!(ada.store.locks().apply(&ada.lock, &acquire).await.unwrap_err().is_retryable());
    let lease = ada.acquire().await;
    fake.catch_up();
    bob.expect_conflict().await;
    assert!(matches!(ada.release(&lease).await, Outcome::Released(_)));
    assert_eq!(worker(&fake, "bob").await.takes().await.attempt, 2, "eve's attempt counts");
}

/// The worker settles its attempt again, and finds it settled. The withdrawal of the first settlement takes
/// effect after that.
#[tokio::test]
async fn a_late_withdrawal_undoes_no_settlement() {
    let (fake, clock) = fake().await;
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    let task = ada.takes().await;
    clock.advance(TTL.as_duration() + Duration::from_millis(GRACE));
    // The candidate takes over the record; the edit that settles it gets no response; the edit that withdraws
    // it arrives late.
    for fate in [Fate::Pass, Fate::LoseAnswer, Fate::Late] {
        fake.plan("PATCH /1000002", fate);
    }
    let result = Payload::new("7").unwrap();
    let done = || AttemptResult::Done(Some(result.clone()));
    assert!(ada.try_settle(&task, done()).await.unwrap_err().is_retryable());
    assert_eq!(ada.settle(&task, done()).await, Settled::Now(TaskState::Succeeded));
    fake.catch_up();
    let stored = bob.get(issue).await;
    assert_eq!((stored.state, stored.result), (TaskState::Succeeded, Some(result)));
}

/// Same as for a settlement.
#[tokio::test]
async fn a_late_withdrawal_undoes_no_cancellation() {
    let (fake, _) = fake().await;
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    assert_eq!(ada.lease(0).await.len(), 0, "it knows the queue");
    fake.plan("PATCH /1000001", Fate::LoseAnswer);
    fake.plan("DELETE /1000001", Fate::Late);
    let cancel = TaskOp::Cancel(Cancel { by: Holder::new("ada").unwrap(), reason: None });
    let tasks = ada.store.tasks().unwrap();
    assert!(tasks.change(id(issue), &cancel).await.unwrap_err().is_retryable());
    assert_eq!(tasks.change(id(issue), &cancel).await.unwrap().unwrap().1.state, TaskState::Aborted);
    fake.catch_up();
    assert!(bob.lease(1).await.is_empty());
    assert_eq!(bob.get(issue).await.state, TaskState::Aborted);
}

#[tokio::test]
async fn a_task_whose_lock_is_force_released_goes_to_the_next_worker() {
    let (fake, clock) = fake().await;
    fake.labelled_issue("Fix it", &["agent"]);
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    let task = ada.takes().await;
    let (by, reason) = (Holder::new("bob").unwrap(), Reason::new("it hangs").unwrap());
    let force = LockOp::ForceRelease(ForceRelease { token: task.token, by, reason });
    let forced = bob.store.locks().apply(&LockName::new("#1").unwrap(), &force).await.unwrap();
    assert!(matches!(forced, Outcome::Forced(_)), "{forced:?}");
    assert_eq!(ada.heartbeat(&task, None).await, HeartbeatResult::Lost);
    clock.advance(Duration::from_millis(GRACE));
    let again = bob.takes().await;
    assert_eq!((again.attempt, again.token > task.token), (2, true));
    assert_eq!(ada.settle(&task, AttemptResult::Done(None)).await, Settled::Lost);
}
