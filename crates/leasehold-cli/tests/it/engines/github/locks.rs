//! Locks as issues, from the shell.

use leasehold::store::Clock;

use super::fake::{Fake, Fate};
use super::tasks::leasehold;

#[tokio::test]
async fn a_command_runs_under_a_lock_that_is_an_issue() {
    let fake = Fake::start(&Clock::system()).await;
    let script = "test \"$LEASEHOLD_TOKEN\" -gt 0 && leasehold_holder=1 && echo deploying";
    let ran = leasehold(&fake, &["run", "deploy", "--holder", "ada", "--", "sh", "-c", script]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "deploying\n"), "{ran:?}");
    {
        let repo = fake.repo();
        let issue = &repo.issues[&1];
        assert_eq!((issue.title.as_str(), issue.assignees.len()), ("deploy", 0));
        assert!(
            issue.comments.values().next().unwrap().body.starts_with("🔓 Released by `ada`"),
            "{issue:?}"
        );
    }
    let ran = leasehold(&fake, &["history", "deploy"]).await;
    assert!(ran.code == 0 && ran.stdout.contains("acquired") && ran.stdout.contains("released"), "{ran:?}");
}

#[tokio::test]
async fn a_conflicting_holder_is_named_and_can_be_forced() {
    let fake = Fake::start(&Clock::system()).await;
    let issue = fake.new_issue("Migration");
    fake.assign(issue, "eve", true);
    let ran = leasehold(&fake, &["run", "#1", "--", "true"]).await;
    assert!(ran.code == 75 && ran.stderr.contains("@eve, who is assigned"), "{ran:?}");
    fake.assign(issue, "eve", false);
    let took = leasehold(&fake, &["locks", "acquire", "#1", "--ttl", "15m", "--holder", "ada"]).await;
    assert!(took.code == 0 && took.stdout.starts_with("#1  held by ada"), "{took:?}");
    let ran = leasehold(&fake, &["run", "issue/1", "--", "true"]).await;
    assert!(ran.code == 75 && ran.stderr.contains("ada"), "{ran:?}");
    let shown = leasehold(&fake, &["locks", "status", "#1"]).await;
    assert!(shown.code == 0 && shown.stdout.contains("ada"), "{shown:?}");
    let shared = leasehold(&fake, &["run", "#1", "--shared", "--", "true"]).await;
    assert!(shared.code == 64 || shared.code == 78, "{shared:?}");
    assert!(shared.stderr.contains("share"), "{shared:?}");
    let forced =
        leasehold(&fake, &["locks", "release", "#1", "--force", "--reason", "ada is gone", "--yes"]).await;
    assert_eq!(forced.code, 0, "{forced:?}");
    let ran = leasehold(&fake, &["run", "#1", "--", "echo", "free"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "free\n"), "{ran:?}");
}

#[tokio::test]
async fn one_client_wins_a_race() {
    let fake = Fake::start(&Clock::system()).await;
    let ran = leasehold(&fake, &["doctor", "--race"]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let race = ran.stdout.lines().find(|line| line.contains("race ")).unwrap();
    assert!(race.starts_with("✓ race") && race.contains(" 4 clients, "), "{race}");
    let locks = leasehold(&fake, &["locks", "list"]).await;
    assert!(locks.code == 0 && !locks.stdout.contains("leasehold-doctor"), "{locks:?}");
}

fn refuse(fake: &Fake, what: &str, seconds: u64) {
    fake.plan(what, Fate::Refuse(403, vec![("retry-after", seconds.to_string())]));
}

/// While the store is opened, while the lock is searched, and while it is acquired.
#[tokio::test]
async fn a_caller_that_waits_for_a_lock_also_waits_for_a_rate_limit() {
    let fake = Fake::start(&Clock::system()).await;
    fake.new_issue("Migration");
    for step in ["GET /ada/engine", "GET /issues/1", "POST /comments"] {
        refuse(&fake, step, 3);
        let ran = leasehold(&fake, &["run", "#1", "--wait", "40s", "--", "echo", "mine"]).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "mine\n"), "{step}: {ran:?}");
    }
    for step in ["GET /ada/engine", "GET /issues/1"] {
        refuse(&fake, step, 3600);
        let ran = leasehold(&fake, &["run", "#1", "--wait", "40s", "--", "echo", "mine"]).await;
        assert!(ran.code == 69 && ran.stderr.contains("GitHub refuses requests until 2"), "{step}: {ran:?}");
    }
}

#[tokio::test]
async fn a_lock_called_by_its_number_is_in_the_list() {
    let fake = Fake::start(&Clock::system()).await;
    fake.new_issue("Migration");
    let took = leasehold(&fake, &["locks", "acquire", "#1", "--ttl", "15m", "--holder", "ada"]).await;
    assert_eq!(took.code, 0, "{took:?}");
    let listed = leasehold(&fake, &["locks", "list"]).await;
    assert!(listed.code == 0 && listed.stdout.contains("#1") && listed.stdout.contains("ada"), "{listed:?}");
}

/// Each read costs a part of the requests that GitHub allows in an hour.
#[tokio::test]
async fn a_wait_reads_the_lock_at_the_interval_of_the_store() {
    let fake = Fake::start(&Clock::system()).await;
    fake.new_issue("Migration");
    let took = leasehold(&fake, &["locks", "acquire", "#1", "--ttl", "15m", "--holder", "ada"]).await;
    assert_eq!(took.code, 0, "{took:?}");
    fake.requests();
    let waited = leasehold(&fake, &["locks", "wait", "#1", "--for", "free", "--timeout", "4s"]).await;
    assert!(waited.code != 0 && waited.stderr.contains("is still held"), "{waited:?}");
    let requests = fake.requests();
    assert!(requests.len() < 20, "{requests:#?}");
}

#[tokio::test]
async fn the_doctor_shows_the_rate_limit_and_no_token() {
    let fake = Fake::start(&Clock::system()).await;
    fake.set_remaining(200);
    let ran = leasehold(&fake, &["doctor"]).await;
    assert!(ran.stdout.contains("200 of 5000") && ran.stdout.contains("GITHUB_RATE_LIMIT_LOW"), "{ran:?}");
    let ran = super::tasks::leasehold_as(&fake, "a-secret", &["run", "deploy", "--", "true"]).await;
    assert_eq!(ran.code, 77, "{ran:?}");
    assert!(!format!("{ran:?}").contains("a-secret"), "{ran:?}");
}
