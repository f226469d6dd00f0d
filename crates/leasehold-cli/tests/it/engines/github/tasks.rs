//! Tasks as issues, as a coding agent uses them.

use leasehold::store::Clock;

use super::fake::Fake;
use crate::support::{Ran, Sandbox, run};

/// Runs the binary with ada's token, on another thread: the service runs on this one.
pub(super) async fn leasehold(fake: &Fake, words: &[&str]) -> Ran {
    leasehold_as(fake, "token-of-ada", words).await
}

/// Runs the binary with another token.
pub(super) async fn leasehold_as(fake: &Fake, token: &'static str, words: &[&str]) -> Ran {
    let (url, words) = (fake.url(), words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
    let ran = tokio::task::spawn_blocking(move || {
        let sandbox = Sandbox::new();
        run(sandbox.command(words).env("LEASEHOLD_STORE", url).env("GITHUB_TOKEN", token))
    });
    ran.await.unwrap()
}

#[tokio::test]
async fn an_issue_is_handled_by_the_binary() {
    let fake = Fake::start(&Clock::system()).await;
    let issue = fake.labelled_issue("Fix the roof", &["agent"]);
    let ran = leasehold(&fake, &["tasks", "list", "--queue", "agent"]).await;
    assert!(ran.code == 0 && ran.stdout.contains("#1") && ran.stdout.contains("pending"), "{ran:?}");
    let script = "leasehold_payload=$(cat); case $leasehold_payload in *'Fix the roof'*) echo '{\"pull\": 7}';; *) exit 9;; esac";
    let ran = leasehold(&fake, &["tasks", "work", "agent", "--once", "--", "sh", "-c", script]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "{\"pull\": 7}\n"), "{ran:?}");
    {
        let repo = fake.repo();
        let issue = &repo.issues[&issue];
        assert!(issue.is_closed && issue.assignees.is_empty(), "{issue:?}");
        let comment = &issue.comments.values().next().unwrap().body;
        assert!(comment.starts_with("✅ **Done**") && comment.contains("{\"pull\": 7}"), "{comment}");
        assert!(comment.contains(r#""ttl":900000000"#), "the store's own ttl: {comment}");
    }
    let ran = leasehold(&fake, &["tasks", "show", "#1"]).await;
    assert!(ran.code == 0 && ran.stdout.starts_with("#1  succeeded"), "{ran:?}");
    let ran = leasehold(&fake, &["tasks", "counts", "agent"]).await;
    assert!(ran.code == 0 && ran.stdout.contains("agent"), "{ran:?}");
    let ran = leasehold(&fake, &["queues", "pause", "agent"]).await;
    assert!(ran.code != 0 && ran.stderr.contains("is not supported on GitHub issues"), "{ran:?}");
}

#[tokio::test]
async fn a_task_is_added_stopped_and_tried_again() {
    let fake = Fake::start(&Clock::system()).await;
    let added = leasehold(&fake, &["tasks", "add", "agent", "--payload", "{\"a\": 1}"]).await;
    assert_eq!(added.code, 0, "{added:?}");
    let id = added.stdout.trim();
    let ran = leasehold(&fake, &["tasks", "cancel", id, "--reason", "not now"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, format!("{id}  aborted\n").as_str()), "{ran:?}");
    assert!(fake.repo().issues[&1].is_closed);
    let ran = leasehold(&fake, &["tasks", "retry", id]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, format!("{id}  pending\n").as_str()), "{ran:?}");
    assert!(!fake.repo().issues[&1].is_closed);
    let ran = leasehold(&fake, &["tasks", "recover"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "nothing to recover\n"), "{ran:?}");
}
