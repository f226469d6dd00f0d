//! `locks list`, `status` and `why`.

use super::support::{Sandbox, shape};

/// Creates locks: one held with a waiter, one shared by two, one with three slots, one released,
/// one expired.
fn busy() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.hold("deploy/prod --holder ada --ttl 1h");
    sandbox.hold("reports --holder carol --shared --ttl 1h");
    sandbox.hold("reports --holder dan --shared --ttl 1h");
    sandbox.hold("workers --holder eve --slots 3 --ttl 1h");
    let done = sandbox.hold("done --holder fay");
    sandbox.ok(&format!("locks release done {}", done.with));
    sandbox.hold("over --holder gil --ttl 50ms");
    sandbox.ok("locks wait over --for free --timeout 30s");
    sandbox
}

fn names(sandbox: &Sandbox, options: &str) -> Vec<String> {
    let found = sandbox.json(&format!("locks list {options}"));
    let names = found.as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap().to_owned());
    names.collect()
}

#[test]
fn a_list_is_a_table_for_people() {
    let sandbox = busy();
    insta::assert_snapshot!(sandbox.tidy(&sandbox.ok("locks list")));
    insta::assert_snapshot!(sandbox.tidy(&sandbox.ok("locks list --all")));
}

#[test]
fn a_list_is_an_array_for_programs() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.ok("locks list --json"), "[]\n");
    sandbox.hold("a --holder ada --ttl 1h");
    insta::assert_snapshot!(shape(sandbox.json("locks list")));
}

#[test]
fn a_list_can_be_filtered() {
    let sandbox = busy();
    assert_eq!(names(&sandbox, ""), ["deploy/prod", "reports", "workers"]);
    assert_eq!(names(&sandbox, "--all"), ["deploy/prod", "done", "over", "reports", "workers"]);
    assert_eq!(names(&sandbox, "--stale"), ["over"]);
    assert_eq!(names(&sandbox, "--filter status=stale"), ["over"]);
    assert_eq!(names(&sandbox, "--filter status=free"), ["done", "over"]);
    assert_eq!(names(&sandbox, "--filter status=held"), ["deploy/prod", "reports", "workers"]);
    assert_eq!(names(&sandbox, "--prefix re"), ["reports"]);
    assert_eq!(names(&sandbox, "--prefix d --all"), ["deploy/prod", "done"]);
    sandbox.ok("locks ask reports");
    assert_eq!(names(&sandbox, "--filter status=releasing"), ["reports"]);
    assert_eq!(names(&sandbox, "--filter status=active"), ["deploy/prod", "workers"]);
    assert_eq!(names(&sandbox, "--filter status=released"), Vec::<String>::new());
}

#[test]
fn a_truncated_list_says_so() {
    let sandbox = busy();
    let ran = sandbox.run("locks list --limit 2");
    assert_eq!(ran.stdout.lines().count(), 1 + 1 + 2, "{}", ran.stdout); // Shared locks have a row for each holder.
    assert_eq!(ran.stderr, "there are more; raise --limit to see them\n");
    assert_eq!(names(&sandbox, "--limit 2"), ["deploy/prod", "reports"]);
    let ran = sandbox.run("locks list --limit 3");
    assert_eq!(ran.stderr, "");
}

#[test]
fn an_empty_list_is_empty_and_says_why() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run("locks list");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert_eq!(ran.stderr, "no lock is held or waited for\n");
    assert_eq!(sandbox.run("locks list --stale").stderr, "no such lock\n");
    assert_eq!(sandbox.run("-q locks list").stderr, "");
}

#[test]
fn a_long_list_is_whole() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("store.db");
    sandbox.hold("lock/0 --ttl 1h");
    // Copying a record under other names is faster than starting that many processes.
    let copy = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1500) \
                INSERT INTO leasehold_locks (name, record, wake_at) SELECT 'lock/' || n, \
                replace(record, '\"name\":\"lock/0\"', '\"name\":\"lock/' || n || '\"'), wake_at FROM leasehold_locks, n;";
    rusqlite::Connection::open(path).unwrap().execute_batch(copy).unwrap();
    assert_eq!(names(&sandbox, "").len(), 1501);
    assert_eq!(names(&sandbox, "--limit 1200").len(), 1200);
}

#[test]
fn a_status_is_a_page_for_people_and_an_object_for_programs() {
    let sandbox = busy();
    let page = |name: &str| {
        let page = sandbox.tidy(&sandbox.ok(&format!("locks status {name}")));
        // On a slow machine the holder has renewed its lease by then.
        let varies = ["command", "host", "user", "renewed"];
        let known = |line: &&str| varies.iter().all(|fact| !line.trim_start().starts_with(fact));
        page.lines().filter(known).collect::<Vec<_>>().join("\n")
    };
    let pages = ["deploy/prod", "reports", "workers", "done", "over", "unknown"].map(page);
    insta::assert_snapshot!(pages.join("\n\n"));
    insta::assert_snapshot!(shape(sandbox.json("locks status unknown")));
}

#[test]
fn a_status_can_be_an_exit_code() {
    let sandbox = busy();
    for (name, code) in [("deploy/prod", 75), ("done", 0), ("over", 0), ("unknown", 0)] {
        assert_eq!(sandbox.run(&format!("locks status {name}")).code, 0, "{name}");
        assert_eq!(sandbox.run(&format!("locks status {name} --exit-code")).code, code, "{name}");
        assert_eq!(sandbox.run(&format!("locks status {name} --exit-code --json")).code, code, "{name}");
    }
}

#[test]
fn why_shows_the_last_event_and_names_the_store() {
    let sandbox = busy();
    let told = sandbox.tidy(&sandbox.ok("locks why done"));
    assert!(told.starts_with("'done' is not held.\nfay released it at [TIME] ([AGE] ago).\n"), "{told}");
    // The same file under another name than that of the sandbox.
    let store = format!("sqlite:{}/./store.db?busy=5s", sandbox.path().display());
    let told = sandbox.tidy(&sandbox.ok(&format!("--store {store} locks why deploy/prod")));
    assert!(
        told.starts_with(
            "'deploy/prod' is held by ada since [TIME] ([AGE] ago), alone, with token [TOKEN].\n"
        ),
        "{told}"
    );
    let force = "leasehold --store 'sqlite:[TEMP]/./store.db?busy=[AGE]' locks release deploy/prod --force --token [TOKEN]";
    assert!(told.contains(force), "{told}");
}

#[test]
fn why_is_an_object_for_programs() {
    let sandbox = Sandbox::new();
    let why = sandbox.json("locks why a");
    insta::assert_snapshot!(shape(why));
}

#[test]
fn foreign_text_cannot_break_the_page() {
    let sandbox = Sandbox::new();
    let words = ["locks", "acquire", "a", "--meta", "command=x\u{1b}[2J\nholder  root"];
    assert_eq!(sandbox.run_words(&words).code, 0);
    for page in ["status", "why"] {
        let page = sandbox.ok(&format!("locks {page} a"));
        assert!(page.contains("x\\u{1b}[2J\\nholder  root"), "{page}");
    }
}
