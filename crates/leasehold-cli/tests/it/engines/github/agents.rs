//! The example in which agents share the issues of a repository.

use leasehold::store::Clock;

use super::fake::Fake;
use crate::examples::example;
use crate::support::{Sandbox, run};

#[tokio::test]
async fn agents_share_the_issues_and_each_is_worked_on_once() {
    let fake = Fake::start(&Clock::system()).await;
    for title in ["Fix the roof", "Paint the door", "Something impossible", "Mend the fence"] {
        fake.labelled_issue(title, &["agent"]);
    }
    fake.labelled_issue("For people", &["help wanted"]);
    let url = fake.url();
    let ran = tokio::task::spawn_blocking(move || {
        let sandbox = Sandbox::new();
        let mut command = example(&sandbox, "agents/run.sh");
        run(command.args([url.as_str(), "agent", "2"]).env("GITHUB_TOKEN", "token-of-ada"))
    });
    let ran = ran.await.unwrap();
    assert_eq!(ran.code, 0, "{ran:?}");
    let repo = fake.repo();
    for (number, issue) in &repo.issues {
        let comments: Vec<_> = issue.comments.values().map(|comment| comment.body.as_str()).collect();
        let (closes, says) = match number {
            3 => (false, "❌ **Failed** in attempt 1"),
            5 => (false, ""),
            _ => (true, "✅ **Done**"),
        };
        assert_eq!(issue.is_closed, closes, "#{number}: {ran:?}");
        assert_eq!(issue.labels.iter().any(|label| label == "leasehold:failed"), *number == 3, "#{number}");
        assert_eq!(comments.len(), usize::from(*number != 5), "#{number}: {comments:?}");
        assert!(comments.iter().all(|comment| comment.starts_with(says)), "#{number}: {comments:?}");
        assert!(issue.assignees.is_empty(), "#{number}");
    }
    assert!(ran.stderr.contains("#1 Fix the roof (attempt 1, token "), "{ran:?}");
}

#[test]
fn a_wrong_call_prints_the_usage() {
    let ran = run(&mut example(&Sandbox::new(), "agents/run.sh"));
    assert!(ran.code == 64 && ran.stderr.contains("run.sh github://OWNER/REPO LABEL [AGENTS]"), "{ran:?}");
}
