//! Tests with faults.

use std::time::{Duration, Instant};

use leasehold::model::{AttemptResult, HeartbeatResult, Payload, Settle, Settled, TaskState};
use leasehold::store::github;

use super::support::{TTL, Worker, continues_at_once, id, worker};
use crate::engines::github::fake::{Fake, Fate, Person};
use crate::engines::github::support::{GRACE, fake, options, test_client};

#[tokio::test]
async fn an_unreadable_claim_keeps_others_out_and_its_worker_loses_the_task() {
    let (fake, clock) = fake().await;
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    let task = ada.takes().await;
    for comment in fake.repo().issues.get_mut(&issue).unwrap().comments.values_mut() {
        comment.body = comment.body.replace("\"state\":\"held\"", "\"state\":\"helt\"");
    }
    assert!(bob.lease(1).await.is_empty());
    assert_eq!(ada.heartbeat(&task, None).await, HeartbeatResult::Lost);
    assert_eq!(ada.settle(&task, AttemptResult::Done(None)).await, Settled::Lost);
    // Its ttl cannot be read, so the default ttl of the store applies.
    clock.advance(Duration::from_secs(900 + 5));
    let again = bob.takes().await;
    assert_eq!(again.attempt, 1, "its first attempt is not known");
    assert!(again.token >= task.token);
    assert_eq!(bob.settle(&again, AttemptResult::Done(None)).await, Settled::Now(TaskState::Succeeded));
}

/// A login without push access cannot be assigned, but can comment. Closing or labelling issues of
/// others needs more.
#[tokio::test]
async fn without_push_access_tasks_run_and_others_update_the_issue() {
    let (fake, clock) = fake().await;
    fake.person("zoe", Person { is_bot: false, association: "MEMBER", can_push: false });
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    let (zoe, bob) = (worker(&fake, "zoe").await, worker(&fake, "bob").await);
    let task = zoe.takes().await;
    assert!(fake.repo().issues[&issue].assignees.is_empty());
    assert!(bob.lease(1).await.is_empty());
    assert_eq!(
        zoe.settle(&task, AttemptResult::Fail(leasehold::testing::task_fixture::why())).await,
        Settled::Now(TaskState::Failed)
    );
    assert_eq!(fake.repo().issues[&issue].labels, ["agent"], "it could not be labelled");
    clock.advance(Duration::from_secs(9));
    assert!(bob.lease(1).await.is_empty());
    assert_eq!(fake.repo().issues[&issue].labels, ["agent", "leasehold:failed"]);
    let new = leasehold::testing::task_fixture::task(1).in_queue("agent");
    let error = zoe.store.tasks().unwrap().enqueue(&[new]).await.unwrap_err();
    assert_eq!(error.code(), "STORE_NOT_PERMITTED");
    assert!(fake.repo().issues.values().all(|issue| issue.title == "Fix it" || issue.is_closed));
}

#[tokio::test]
async fn a_rate_limit_at_any_step_loses_no_task() {
    let refused = || Fate::Refuse(403, vec![("retry-after", "1".to_owned())]);
    for what in ["POST /comments", "PATCH /1000001", "POST /assignees"] {
        let (fake, _) = fake().await;
        fake.labelled_issue("Fix it", &["agent"]);
        let ada = worker(&fake, "ada").await;
        fake.plan(what, refused());
        let mut tries = 0;
        let task = loop {
            match ada.try_lease(1).await {
                Ok(mut tasks) if !tasks.is_empty() => break tasks.remove(0),
                Ok(_) => {}
                Err(error) => assert!(error.is_retryable(), "{what}: {error}"),
            }
            tries += 1;
            assert!(tries < 600, "{what}: it was never leased");
            tokio::time::sleep(Duration::from_millis(20)).await;
            // A candidate that could not be withdrawn expires by itself.
            if tries % 100 == 0 {
                fake.clock().advance(TTL.as_duration() + Duration::from_millis(GRACE));
            }
        };
        fake.plan("PATCH /1", refused());
        let mut settled = ada.try_settle(&task, AttemptResult::Done(None)).await;
        while let Err(error) = &settled {
            assert!(error.is_retryable(), "{what}: {error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
            settled = ada.try_settle(&task, AttemptResult::Done(None)).await;
        }
        assert_eq!(settled.unwrap(), Settled::Now(TaskState::Succeeded), "{what}");
    }
}

/// Neither answer shows that the lease is lost.
#[tokio::test]
async fn a_refused_heartbeat_loses_no_lease_and_a_refused_settlement_no_result() {
    for fate in [Fate::Refuse(401, Vec::new()), Fate::Proxy(503)] {
        let is_outage = fate == Fate::Proxy(503);
        let (fake, _) = fake().await;
        let issue = fake.labelled_issue("Fix it", &["agent"]);
        let ada = worker(&fake, "ada").await;
        let task = ada.takes().await;
        fake.plan("GET /issues/1", fate.clone());
        let error = ada.try_heartbeat(&task, None).await.unwrap_err();
        assert_eq!(error.is_retryable(), is_outage, "{error}");
        assert_eq!(ada.heartbeat(&task, None).await, HeartbeatResult::Extended(None));
        fake.plan("PATCH /1000001", fate);
        let result = Payload::new("7").unwrap();
        let done = || AttemptResult::Done(Some(result.clone()));
        let error = ada.try_settle(&task, done()).await.unwrap_err();
        assert_eq!((error.is_retryable(), error.is_not_permitted()), (is_outage, !is_outage), "{error}");
        assert_eq!(ada.settle(&task, done()).await, Settled::Now(TaskState::Succeeded));
        assert_eq!(ada.get(issue).await.result, Some(result));
    }
}

/// The caller sends both settlements again at once, and gets the same answer for the one that was applied.
#[tokio::test]
async fn a_refused_settlement_keeps_no_other_from_being_settled() {
    let (fake, _) = fake().await;
    for title in ["Fix it", "Fix it too"] {
        fake.labelled_issue(title, &["agent"]);
    }
    let mut options = options(&fake, "ada");
    options.gap = Duration::from_millis(50);
    let ada = Worker { store: github::connect(options).await.unwrap(), ..worker(&fake, "ada").await };
    let attempts = [ada.takes().await, ada.takes().await];
    fake.plan("PATCH /1000001", Fate::Refuse(401, Vec::new()));
    let verdict = AttemptResult::Done(None);
    let done =
        attempts.each_ref().map(|task| Settle { id: task.id, token: task.token, result: verdict.clone() });
    let tasks = ada.store.tasks().unwrap();
    let error = tasks.settle(&done).await.unwrap_err();
    assert!(error.is_not_permitted(), "{error}");
    for (task, state) in attempts.iter().zip([TaskState::Running, TaskState::Succeeded]) {
        assert_eq!(tasks.get(task.id).await.unwrap().expect("a task").state, state);
    }
    assert_eq!(tasks.settle(&done).await.unwrap(), [Settled::Now(TaskState::Succeeded); 2]);
}

#[tokio::test]
async fn a_deleted_issue_has_no_task() {
    let (fake, _) = fake().await;
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    let other = fake.labelled_issue("Fix it too", &["agent"]);
    let ada = worker(&fake, "ada").await;
    let task = ada.takes().await;
    fake.repo().issues.get_mut(&issue).unwrap().is_deleted = true;
    assert_eq!(ada.heartbeat(&task, None).await, HeartbeatResult::Lost);
    assert_eq!(ada.settle(&task, AttemptResult::Done(None)).await, Settled::Lost);
    assert_eq!(ada.takes().await.id.number(), Some(other));
}

/// Every call of a worker comes to these issues first.
#[tokio::test]
async fn a_hundred_issues_that_cannot_be_leased_keep_no_later_task_from_its_retry() {
    for failed in [true, false] {
        let (fake, clock) = fake().await;
        for _ in 0..100 {
            if failed {
                fake.labelled_issue("Given up", &["agent", "leasehold:failed"]);
            } else {
                let assigned = fake.labelled_issue("Taken", &["agent"]);
                fake.write(assigned, "eve", "I do it.");
                fake.assign(assigned, "eve", true);
            }
        }
        clock.advance(Duration::from_secs(5));
        let issue = fake.labelled_issue("Fix it", &["agent"]);
        clock.advance(Duration::from_secs(5));
        let ada = worker(&fake, "ada").await;
        let task = ada.takes().await;
        assert_eq!(task.id, id(issue));
        let why = leasehold::testing::task_fixture::why();
        let settled = ada.settle(&task, AttemptResult::Retry(why, None)).await;
        assert_eq!(settled, Settled::Now(TaskState::Scheduled));
        clock.advance(Duration::from_hours(1));
        let again = ada.takes().await;
        assert_eq!((again.id, again.attempt), (id(issue), 2), "failed: {failed}");
    }
}

/// A lease counts from before the call, so the call must not take long before it comes to a task.
#[tokio::test]
async fn a_slow_call_leaves_the_other_issues_to_the_next_one() {
    let (fake, clock) = fake().await;
    let assigned = fake.labelled_issue("Taken", &["agent"]);
    fake.write(assigned, "eve", "I do it.");
    fake.assign(assigned, "eve", true);
    clock.advance(Duration::from_secs(5));
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    clock.advance(Duration::from_secs(5));
    let ada = worker(&fake, "ada").await;
    // The comments of the first issue are read twice. Together, that takes longer than a call may.
    for _ in 0..2 {
        fake.plan("GET /comments", Fate::Delay(Duration::from_millis(2600)));
    }
    let leased = ada.call_lease(1).await.unwrap();
    assert!(leased.tasks.is_empty() && continues_at_once(&leased), "{leased:?}");
    assert_eq!(ada.takes().await.id, id(issue));
}

/// Lets the next reads of the first issue and its comments together take longer than a call may.
fn slow_reads_of_first_issue(fake: &Fake, reads: u32) {
    for _ in 0..reads {
        fake.plan("GET /issues/1*", Fate::Delay(Duration::from_millis(5400) / reads));
    }
}

/// Returns the number of requests for the first issue and its comments since the last call.
fn requests_for_first_issue(fake: &Fake) -> usize {
    let is_for_first = |request: &&String| request.ends_with("/issues/1") || request.contains("/issues/1/");
    fake.requests().iter().filter(is_for_first).count()
}

/// The comments of the first issue are too many, so reading them fails. If that also takes longer than a call
/// may, the issue is left out for a while even if it changes.
#[tokio::test]
async fn an_issue_that_cannot_be_read_keeps_no_later_task_back() {
    const MAX_PAGES: usize = 30;
    for slow in [true, false] {
        let (fake, clock) = fake().await;
        let long = fake.labelled_issue("Discuss it", &["agent"]);
        for _ in 0..MAX_PAGES * 100 {
            fake.write(long, "eve", "Me too.");
        }
        clock.advance(Duration::from_secs(5));
        let issue = fake.labelled_issue("Fix it", &["agent"]);
        clock.advance(Duration::from_secs(5));
        let ada = worker(&fake, "ada").await;
        if slow {
            slow_reads_of_first_issue(&fake, 9);
            let leased = ada.call_lease(1).await.unwrap();
            assert!(leased.tasks.is_empty() && continues_at_once(&leased), "{leased:?}");
        }
        let began = Instant::now();
        let task = ada.takes().await;
        // On a busy machine the pages may take longer than a call may.
        let may_be_slow = !slow && began.elapsed() > Duration::from_secs(4);
        assert_eq!(requests_for_first_issue(&fake), MAX_PAGES, "slow: {slow}");
        assert_eq!(task.id, id(issue));
        ada.settle(&task, AttemptResult::Done(None)).await;
        for _ in 0..2 {
            assert!(ada.lease(1).await.is_empty());
        }
        assert_eq!(requests_for_first_issue(&fake), 0, "no poll reads it again");
        clock.advance(Duration::from_hours(1));
        fake.write(long, "eve", "Again.");
        assert!(ada.lease(1).await.is_empty());
        let (requests, expected) = (requests_for_first_issue(&fake), if slow { 0 } else { MAX_PAGES });
        assert!(requests == expected || (may_be_slow && requests == 0), "slow: {slow}, {requests} requests");
    }
}

/// Strangers comment on the first issue, and reading its comments takes longer than a call may.
#[tokio::test]
async fn a_slow_issue_that_changes_with_each_call_keeps_no_later_task_back() {
    for locked in [true, false] {
        let (fake, clock) = fake().await;
        fake.person("zoe", Person { is_bot: false, association: "MEMBER", can_push: false });
        let long = fake.labelled_issue("Discuss it", &["agent"]);
        for _ in 0..250 {
            fake.write(long, "eve", "Me too.");
        }
        clock.advance(Duration::from_secs(5));
        let issue = fake.labelled_issue("Fix it", &["agent"]);
        if locked {
            test_client(&fake, "zoe", "#1").await.acquire().await;
        }
        clock.advance(Duration::from_secs(5));
        let ada = worker(&fake, "ada").await;
        slow_reads_of_first_issue(&fake, 3);
        let leased = ada.call_lease(1).await.unwrap();
        if !locked {
            assert_eq!(leased.tasks.first().map(|task| task.id), Some(id(long)), "{leased:?}");
            continue;
        }
        assert!(leased.tasks.is_empty() && continues_at_once(&leased), "{leased:?}");
        clock.advance(Duration::from_secs(10));
        fake.write(long, "eve", "Again.");
        requests_for_first_issue(&fake);
        let leased = ada.call_lease(1).await.unwrap();
        assert_eq!(leased.tasks.first().map(|task| task.id), Some(id(issue)), "{leased:?}");
        assert_eq!(requests_for_first_issue(&fake), 0);
    }
}

/// Every read of the comments of the first issue fails, as if they were too large for the time of a request.
#[tokio::test]
async fn an_issue_at_which_each_call_fails_keeps_no_later_task_back() {
    let (fake, clock) = fake().await;
    let large = fake.labelled_issue("Discuss it", &["agent"]);
    fake.write(large, "eve", "Me too.");
    clock.advance(Duration::from_secs(5));
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    clock.advance(Duration::from_secs(5));
    let ada = worker(&fake, "ada").await;
    for _ in 0..3 {
        fake.plan("GET /issues/1*", Fate::Proxy(502));
        assert!(ada.try_lease(1).await.unwrap_err().is_retryable());
    }
    fake.plan("GET /issues/1*", Fate::Proxy(502));
    assert_eq!(ada.takes().await.id, id(issue));
}

/// The attempt itself changes the first issue: it posts a candidate, and deletes it when the edit that would
/// make it a lease is refused.
#[tokio::test]
async fn a_slow_issue_whose_lease_is_refused_keeps_no_later_task_back() {
    let (fake, clock) = fake().await;
    fake.labelled_issue("Fix it", &["agent"]);
    clock.advance(Duration::from_secs(5));
    let issue = fake.labelled_issue("Fix it too", &["agent"]);
    clock.advance(Duration::from_secs(5));
    let ada = worker(&fake, "ada").await;
    slow_reads_of_first_issue(&fake, 3);
    fake.plan("PATCH /1000001", Fate::Refuse(401, Vec::new()));
    let leased = ada.call_lease(1).await.unwrap();
    assert!(leased.tasks.is_empty() && continues_at_once(&leased), "{leased:?}");
    assert!(fake.repo().issues[&1].comments.is_empty(), "the candidate was deleted");
    requests_for_first_issue(&fake);
    assert_eq!(ada.takes().await.id, id(issue));
    assert_eq!(requests_for_first_issue(&fake), 0);
}

/// The first issue is locked by a login that cannot be assigned, so only its comments show that.
#[tokio::test]
async fn a_slow_issue_that_is_locked_keeps_no_later_task_back() {
    let (fake, clock) = fake().await;
    fake.person("zoe", Person { is_bot: false, association: "MEMBER", can_push: false });
    let locked = fake.labelled_issue("Fix it", &["agent"]);
    clock.advance(Duration::from_secs(5));
    let issue = fake.labelled_issue("Fix it too", &["agent"]);
    test_client(&fake, "zoe", "#1").await.acquire().await;
    clock.advance(Duration::from_secs(5));
    let ada = worker(&fake, "ada").await;
    slow_reads_of_first_issue(&fake, 3);
    let leased = ada.call_lease(1).await.unwrap();
    assert!(leased.tasks.is_empty() && continues_at_once(&leased), "{leased:?}");
    requests_for_first_issue(&fake);
    assert_eq!(ada.takes().await.id, id(issue));
    assert_eq!(requests_for_first_issue(&fake), 0);
    // The lock expires, which changes nothing on its issue. A call that has come to the end of the queue lets
    // the next one try the issue again.
    clock.advance(Duration::from_secs(15));
    assert!(ada.lease(1).await.is_empty());
    assert_eq!(ada.takes().await.id, id(locked));
}
