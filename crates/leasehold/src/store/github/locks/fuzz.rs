//! Fuzz target of comments: any user may have written or changed them.

use super::claim::{CommentContent, EndKind, ParsedComment};
use super::view::View;
use crate::fuzz_corpus;
use crate::model::{LockName, Timestamp, Token};
use crate::store::github::api::Comment;
use crate::testing::fuzz::{Shape, fuzz};

/// 1 January 2024, 0:00 UTC.
const NOW: Timestamp = Timestamp::from_micros(1_704_067_200_000_000);

#[test]
fn github_comments_are_parsed_as_they_were_rendered() {
    fuzz(fuzz_corpus!("github-comments"), 2_000, |input| {
        let text = String::from_utf8_lossy(input);
        let parsed = CommentContent::parse(&text);
        if let ParsedComment::Ours(content) = &parsed {
            let rendered = content.render();
            assert_eq!(CommentContent::parse(&rendered), parsed, "{rendered}");
            assert_eq!(rendered.matches("-->").count(), 1, "nothing else ends the hidden part: {rendered}");
            assert!(content.highest_token() <= Token::MAX);
            if let CommentContent::Held(claim) | CommentContent::Released(claim) = &**content {
                let lease = claim.lease(NOW, None);
                assert!(lease.expires_at >= NOW.min(claim.until.unwrap_or(NOW)));
                assert_eq!(claim.ended_lease(EndKind::Stolen, NOW).token, claim.token);
            }
        }
        let view = View::new(NOW, vec![comment(1, "Hello"), comment(2, &text), comment(3, &text)], |_| true);
        let record = view.record(&LockName::new("deploy").unwrap());
        let holders = record.as_ref().map_or(0, |record| record.holders.len());
        assert!(holders <= 2 && record.is_none_or(|record| record.token <= Token::MAX));
        Shape::of(&(parsed, holders))
    });
}

fn comment(id: u64, body: &str) -> Comment {
    let date = "2023-12-31T23:59:59Z";
    let comment = serde_json::json!({
        "id": id, "body": body, "user": {"login": "ada"}, "created_at": date, "updated_at": date,
    });
    serde_json::from_value(comment).unwrap()
}
