//! Fuzz target of the messages of commits.

use super::commit_message::CommitDocument;
use crate::fuzz_corpus;
use crate::store::{Annotation, NewDocument};
use crate::testing::fuzz::{Shape, fuzz};

#[test]
fn github_commits_are_parsed_as_they_were_rendered() {
    fuzz(fuzz_corpus!("github-commits"), 2_000, |input| {
        let text = String::from_utf8_lossy(input);
        let document = CommitDocument::parse(&text);
        if let Some(document) = &document {
            let annotations = vec![
                ("status", Annotation::Text("held".to_owned())),
                ("holder", Annotation::Text(document.key.clone())),
                ("metadata", Annotation::Texts(vec![(document.key.clone(), document.body.clone())])),
            ];
            let rendered = document.render(&NewDocument { body: String::new(), annotations, keep: None });
            assert_eq!(CommitDocument::parse(&rendered).as_ref(), Some(document), "{rendered}");
            for (at, _) in rendered.match_indices(['@', '#']) {
                assert!(rendered[at + 1..].starts_with('\u{200b}'), "it notifies a user: {rendered}");
            }
        }
        Shape::of(&document)
    });
}
