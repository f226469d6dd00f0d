//! A worker that dies at any step, with its last request lost, done without an answer, or done late: there are never two who
//! have the task, nothing that was settled is done again, and the next one gets it within the ttl and the margin.

use std::time::Duration;

use leasehold::model::{
    AttemptResult, ForceRelease, HeartbeatResult, Holder, LockName, LockOp, Outcome, Reason, Settled,
    TaskState,
};
use leasehold::store::Clock;

use super::support::{TTL, Worker, worker};
use crate::engines::github::fake::{Fake, Fate};
use crate::engines::github::support::{GRACE, fake};

/// More than any operation makes.
const STEPS: u32 = 12;

/// When what was late takes effect.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    AtOnce,
    AfterTheNextHasIt,
}

struct Scene {
    fake: Fake,
    clock: Clock,
    ada: Worker,
    bob: Worker,
    eve: Worker,
    issue: u64,
    step: u32,
    fate: Fate,
    then: Then,
}

async fn for_each_step(play: impl AsyncFn(&Scene)) {
    for step in 0..STEPS {
        for loss in [Fate::LoseRequest, Fate::LoseAnswer, Fate::Late] {
            for then in [Then::AtOnce, Then::AfterTheNextHasIt] {
                let Some((fake, clock)) = fake().await else { return };
                let issue = fake.labelled_issue("Fix it", &["agent"]);
                let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
                let eve = worker(&fake, "eve").await;
                play(&Scene { fake, clock, ada, bob, eve, issue, step, fate: loss.clone(), then }).await;
            }
        }
    }
}

impl Scene {
    fn what(&self) -> String {
        format!("step {}, {:?}, {:?}", self.step, self.fate, self.then)
    }

    fn dies(&self) {
        self.fake.crash("ada", self.step, self.fate.clone());
    }

    /// What was late takes effect, if it is to do so before anybody else comes.
    fn settle_down(&self) {
        if self.then == Then::AtOnce {
            self.fake.catch_up();
        }
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    fn outlast(&self) {
        self.pass(TTL.as_duration() + Duration::from_millis(GRACE));
    }

    /// Bob takes it and does it, whatever still happens.
    async fn bob_does_it(&self, attempts: std::ops::RangeInclusive<u32>) {
        let what = self.what();
        let task = self.bob.takes().await;
        assert!(attempts.contains(&task.attempt), "{what}: attempt {}", task.attempt);
        self.fake.catch_up();
        self.pass(Duration::from_secs(3));
        assert_eq!(
            self.bob.beat(&task, None).await,
            HeartbeatResult::Extended(None),
            "{what}: it was lost again"
        );
        assert!(self.eve.lease(1).await.is_empty(), "{what}: eve came in");
        assert_eq!(
            self.bob.settle(&task, AttemptResult::Done(None)).await,
            Settled::Now(TaskState::Succeeded),
            "{what}"
        );
        self.is_over_for_ever(TaskState::Succeeded).await;
    }

    /// Whatever is late, it stays as it was settled, and the issue looks so.
    async fn is_over_for_ever(&self, state: TaskState) {
        let what = self.what();
        self.fake.catch_up();
        for _ in 0..3 {
            self.outlast();
            assert!(self.eve.lease(1).await.is_empty(), "{what}: it was done again");
        }
        assert_eq!(self.eve.get(self.issue).await.state, state, "{what}");
        let repo = self.fake.repo();
        let issue = &repo.issues[&self.issue];
        let failed = issue.labels.iter().any(|label| label == "leasehold:failed");
        assert_eq!(
            (issue.is_closed, failed),
            (state != TaskState::Failed, state == TaskState::Failed),
            "{what}"
        );
        // That somebody is assigned may come to effect at any time, and nobody can tell it from a person's wish.
        let is_late = self.fate == Fate::Late && self.then == Then::AfterTheNextHasIt;
        assert!(is_late || issue.assignees.is_empty(), "{what}: {:?} is still assigned", issue.assignees);
    }
}

#[tokio::test]
async fn while_it_leases() {
    for_each_step(async |scene| {
        scene.dies();
        let leased = scene.ada.try_to_lease(1).await;
        scene.settle_down();
        if leased.is_ok_and(|tasks| !tasks.is_empty()) {
            // Up to the last moment of the lease that ada counts on.
            scene.pass(TTL.as_duration().saturating_sub(Duration::from_secs(1)));
            assert!(scene.bob.lease(1).await.is_empty(), "{}: two have it", scene.what());
            scene.pass(Duration::from_millis(GRACE + 1_000));
        } else {
            scene.pass(Duration::from_millis(60_000 + GRACE));
        }
        scene.bob_does_it(1..=2).await;
    })
    .await;
}

#[tokio::test]
async fn while_it_leases_from_a_dead_one() {
    for_each_step(async |scene| {
        scene.eve.takes().await;
        scene.outlast();
        scene.dies();
        let leased = scene.ada.try_to_lease(1).await;
        scene.settle_down();
        if leased.is_ok_and(|tasks| !tasks.is_empty()) {
            assert!(scene.bob.lease(1).await.is_empty(), "{}: two have it", scene.what());
        }
        scene.outlast();
        // That eve has tried is not forgotten.
        scene.bob_does_it(2..=3).await;
    })
    .await;
}

#[tokio::test]
async fn while_it_recovers_for_others() {
    for_each_step(async |scene| {
        scene.eve.takes().await;
        scene.outlast();
        let tasks = scene.ada.store.tasks().unwrap();
        assert_eq!(scene.ada.lease(0).await.len(), 0, "it knows the queue");
        scene.dies();
        drop(tasks.recover(10).await);
        scene.settle_down();
        scene.outlast();
        scene.bob_does_it(2..=2).await;
    })
    .await;
}

#[tokio::test]
async fn while_it_shows_a_sign_of_life() {
    for_each_step(async |scene| {
        let task = scene.ada.takes().await;
        scene.pass(Duration::from_secs(20));
        scene.dies();
        let beat = scene.ada.try_to_beat(&task, None).await;
        scene.settle_down();
        let left = if matches!(beat, Ok(HeartbeatResult::Extended(_))) { 59 } else { 39 };
        scene.pass(Duration::from_secs(left));
        assert!(scene.bob.lease(1).await.is_empty(), "{}: two have it", scene.what());
        scene.outlast();
        scene.bob_does_it(2..=2).await;
    })
    .await;
}

#[tokio::test]
async fn while_it_says_that_it_is_done() {
    for_each_step(async |scene| settles(scene, AttemptResult::Done(None), TaskState::Succeeded).await).await;
}

#[tokio::test]
async fn while_it_says_that_it_has_failed() {
    let why = leasehold::testing::shop::why();
    for_each_step(async |scene| settles(scene, AttemptResult::Fail(why.clone()), TaskState::Failed).await)
        .await;
}

async fn settles(scene: &Scene, verdict: AttemptResult, state: TaskState) {
    let task = scene.ada.takes().await;
    scene.pass(Duration::from_secs(5));
    scene.dies();
    let settled = scene.ada.try_to_settle(&task, verdict.clone()).await;
    scene.settle_down();
    scene.outlast();
    if let Ok(settled) = settled {
        assert_eq!(settled, Settled::Now(state), "{}", scene.what());
        // If its issue does not look so yet, whoever comes next sees to it.
        return scene.is_over_for_ever(state).await;
    }
    let was_settled = scene.eve.get(scene.issue).await.state == state;
    if was_settled { scene.is_over_for_ever(state).await } else { scene.bob_does_it(2..=2).await }
}

/// A worker that lives: what it sends last counts, whatever of it arrives late.
#[tokio::test]
async fn a_sign_of_life_that_arrives_after_the_settlement_brings_nothing_back() {
    for verdict in [AttemptResult::Done(None), AttemptResult::Return] {
        let Some((fake, clock)) = fake().await else { return };
        let issue = fake.labelled_issue("Fix it", &["agent"]);
        let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
        let task = ada.takes().await;
        clock.advance(Duration::from_secs(5));
        fake.plan("PATCH /1000001", Fate::Late);
        assert!(ada.try_to_beat(&task, None).await.unwrap_err().is_retryable());
        let is_done = matches!(verdict, AttemptResult::Done(_));
        let state = if is_done { TaskState::Succeeded } else { TaskState::Pending };
        assert_eq!(ada.settle(&task, verdict).await, Settled::Now(state));
        fake.catch_up();
        assert_eq!(ada.get(issue).await.state, state);
        clock.advance(TTL.as_duration() + Duration::from_millis(GRACE));
        assert_eq!(bob.lease(1).await.len(), usize::from(!is_done));
    }
}

#[tokio::test]
async fn a_settlement_without_an_answer_is_sent_again() {
    for fate in [Fate::LoseRequest, Fate::LoseAnswer, Fate::Late] {
        let Some((fake, clock)) = fake().await else { return };
        let issue = fake.labelled_issue("Fix it", &["agent"]);
        let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
        let task = ada.takes().await;
        fake.plan("PATCH /1000001", fate.clone());
        let done = || AttemptResult::Done(None);
        assert!(ada.try_to_settle(&task, done()).await.unwrap_err().is_retryable(), "{fate:?}");
        assert_eq!(ada.settle(&task, done()).await, Settled::Now(TaskState::Succeeded), "{fate:?}");
        fake.catch_up();
        clock.advance(TTL.as_duration() + Duration::from_millis(GRACE));
        assert!(bob.lease(1).await.is_empty(), "{fate:?}");
        let stored = bob.get(issue).await;
        assert_eq!((stored.state, stored.attempt), (TaskState::Succeeded, 1), "{fate:?}");
        assert!(fake.repo().issues[&issue].is_closed, "{fate:?}");
    }
}

/// It lives, and yet the task is not its own: what it has cleared away for it must not be lost with its flag.
#[tokio::test]
async fn a_worker_that_fails_after_clearing_away_leaves_what_was_known() {
    for fate in [Fate::LoseRequest, Fate::LoseAnswer] {
        let Some((fake, clock)) = fake().await else { return };
        fake.labelled_issue("Fix it", &["agent"]);
        let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
        worker(&fake, "eve").await.takes().await;
        clock.advance(TTL.as_duration() + Duration::from_millis(GRACE));
        // Its flag takes up what eve's claim says; that it becomes a lease is not answered.
        fake.plan("PATCH /1000002", Fate::Pass);
        fake.plan("PATCH /1000002", fate.clone());
        assert!(ada.try_to_lease(1).await.unwrap_err().is_retryable(), "{fate:?}");
        assert_eq!(bob.takes().await.attempt, 2, "{fate:?}: that eve has tried is known");
    }
}

#[tokio::test]
async fn a_task_whose_lock_is_taken_by_force_goes_to_the_next() {
    let Some((fake, clock)) = fake().await else { return };
    fake.labelled_issue("Fix it", &["agent"]);
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    let task = ada.takes().await;
    let (by, reason) = (Holder::new("bob").unwrap(), Reason::new("it hangs").unwrap());
    let force = LockOp::ForceRelease(ForceRelease { token: task.token, by, reason });
    let forced = bob.store.locks().apply(&LockName::new("#1").unwrap(), &force).await.unwrap();
    assert!(matches!(forced, Outcome::Forced(_)), "{forced:?}");
    assert_eq!(ada.beat(&task, None).await, HeartbeatResult::Lost);
    clock.advance(Duration::from_millis(GRACE));
    let again = bob.takes().await;
    assert_eq!((again.attempt, again.token > task.token), (2, true));
    assert_eq!(ada.settle(&task, AttemptResult::Done(None)).await, Settled::Lost);
}
