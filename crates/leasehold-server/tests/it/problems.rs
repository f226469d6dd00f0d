//! Problems: each `type` refers to a paragraph of the documentation, and each body has the members
//! of RFC 9457.

use std::collections::BTreeSet;
use std::path::Path;

use leasehold_server::Problem;
use serde_json::json;

use crate::test_server::TestServer;

/// Returns the anchors of a page, as the host generates them from its headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-")).collect()
}

#[test]
fn every_code_has_a_paragraph_in_the_documentation() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors.md");
    let anchors = anchors(&std::fs::read_to_string(page).unwrap());
    let codes = Problem::codes();
    assert!(codes.len() > 30, "{codes:?}");
    let lost: Vec<_> = codes.iter().filter(|code| !anchors.contains(&code.to_lowercase())).collect();
    assert!(lost.is_empty(), "docs/errors.md has no paragraph on {lost:?}");
}

#[test]
fn every_code_that_the_server_uses_is_listed() {
    fn read(folder: &Path, into: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, into);
            } else {
                into.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut source = String::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut source);
    let codes = Problem::codes();
    let made = source.split("Problem::new(").skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
    let made: BTreeSet<_> = made.filter_map(|rest| rest.split('"').next()).collect();
    assert!(made.len() > 10, "{made:?}");
    let unknown: Vec<_> = made.iter().filter(|code| !codes.contains(code)).collect();
    assert!(unknown.is_empty(), "status.rs does not list {unknown:?}");
}

#[tokio::test]
async fn a_problem_has_the_members_of_rfc_9457_and_no_second_names_for_them() {
    let server = TestServer::open().await;
    let reply = server
        .post("/api/v1/locks/a/release", &json!({ "leaseId": uuid::Uuid::from_u128(1), "token": 1 }))
        .await;
    assert_eq!((reply.status, reply.code()), (404, "LOCK_NOT_HELD"));
    let members: Vec<_> = reply.body.as_object().unwrap().keys().map(String::as_str).collect();
    for member in ["type", "title", "status", "detail", "instance", "code", "hint", "requestId", "success"] {
        assert!(members.contains(&member), "{member}: {}", reply.body);
    }
    assert!(!members.contains(&"error") && !members.contains(&"details"), "{}", reply.body);
    assert!(reply.body["type"].as_str().unwrap().ends_with("docs/errors.md#lock_not_held"));
    server.stop().await;
}
