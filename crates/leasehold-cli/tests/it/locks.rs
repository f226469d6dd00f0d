//! Seeing locks: list, status, why.

use super::support::{Bench, shape};

/// One held and waited for, one shared by two, one of three slots, one released, one whose time is over.
fn busy() -> Bench {
    let bench = Bench::new();
    bench.hold("deploy/prod --holder ada --ttl 1h");
    bench.hold("reports --holder carol --shared --ttl 1h");
    bench.hold("reports --holder dan --shared --ttl 1h");
    bench.hold("workers --holder eve --slots 3 --ttl 1h");
    let done = bench.hold("done --holder fay");
    bench.ok(&format!("locks release done {}", done.with));
    bench.hold("over --holder gil --ttl 50ms");
    bench.ok("locks wait over --for free --timeout 30s");
    bench
}

fn names(bench: &Bench, options: &str) -> Vec<String> {
    let found = bench.json(&format!("locks list {options}"));
    let names = found.as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap().to_owned());
    names.collect()
}

#[test]
fn a_list_is_a_table_for_people() {
    let bench = busy();
    insta::assert_snapshot!(bench.tidy(&bench.ok("locks list")));
    insta::assert_snapshot!(bench.tidy(&bench.ok("locks list --all")));
}

#[test]
fn a_list_is_an_array_for_programs() {
    let bench = Bench::new();
    assert_eq!(bench.ok("locks list --json"), "[]\n");
    bench.hold("a --holder ada --ttl 1h");
    insta::assert_snapshot!(shape(bench.json("locks list")));
}

#[test]
fn a_list_can_be_narrowed() {
    let bench = busy();
    assert_eq!(names(&bench, ""), ["deploy/prod", "reports", "workers"]);
    assert_eq!(names(&bench, "--all"), ["deploy/prod", "done", "over", "reports", "workers"]);
    assert_eq!(names(&bench, "--stale"), ["over"]);
    assert_eq!(names(&bench, "--filter status=stale"), ["over"]);
    assert_eq!(names(&bench, "--filter status=free"), ["done", "over"]);
    assert_eq!(names(&bench, "--filter status=held"), ["deploy/prod", "reports", "workers"]);
    assert_eq!(names(&bench, "--prefix re"), ["reports"]);
    assert_eq!(names(&bench, "--prefix d --all"), ["deploy/prod", "done"]);
    bench.ok("locks ask reports");
    assert_eq!(names(&bench, "--filter status=releasing"), ["reports"]);
    assert_eq!(names(&bench, "--filter status=active"), ["deploy/prod", "workers"]);
    assert_eq!(names(&bench, "--filter status=released"), Vec::<String>::new());
}

#[test]
fn a_list_that_is_cut_says_so() {
    let bench = busy();
    let ran = bench.run("locks list --limit 2");
    assert_eq!(ran.stdout.lines().count(), 1 + 1 + 2, "{}", ran.stdout); // Shared locks have a row for each holder.
    assert_eq!(ran.stderr, "there are more; raise --limit to see them\n");
    assert_eq!(names(&bench, "--limit 2"), ["deploy/prod", "reports"]);
    let ran = bench.run("locks list --limit 3");
    assert_eq!(ran.stderr, "");
}

#[test]
fn an_empty_list_is_empty_and_says_why() {
    let bench = Bench::new();
    let ran = bench.run("locks list");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert_eq!(ran.stderr, "no lock is held or waited for\n");
    assert_eq!(bench.run("locks list --stale").stderr, "no such lock\n");
    assert_eq!(bench.run("-q locks list").stderr, "");
}

#[test]
fn a_long_list_is_whole() {
    let bench = Bench::new();
    let path = bench.path().join("store.db");
    bench.hold("lock/0 --ttl 1h");
    // Copies of a record under other names are quicker than so many processes.
    let copy = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1500) \
                INSERT INTO locks (name, record, wake_at) SELECT 'lock/' || n, \
                replace(record, '\"name\":\"lock/0\"', '\"name\":\"lock/' || n || '\"'), wake_at FROM locks, n;";
    rusqlite::Connection::open(path).unwrap().execute_batch(copy).unwrap();
    assert_eq!(names(&bench, "").len(), 1501);
    assert_eq!(names(&bench, "--limit 1200").len(), 1200);
}

#[test]
fn a_status_is_a_page_for_people_and_an_object_for_programs() {
    let bench = busy();
    let page = |name: &str| {
        let page = bench.tidy(&bench.ok(&format!("locks status {name}")));
        let known =
            |line: &&str| ["command", "host", "user"].iter().all(|fact| !line.trim_start().starts_with(fact));
        page.lines().filter(known).collect::<Vec<_>>().join("\n")
    };
    let pages = ["deploy/prod", "reports", "workers", "done", "over", "unknown"].map(page);
    insta::assert_snapshot!(pages.join("\n\n"));
    insta::assert_snapshot!(shape(bench.json("locks status unknown")));
}

#[test]
fn a_status_can_be_an_exit_code() {
    let bench = busy();
    for (name, code) in [("deploy/prod", 75), ("done", 0), ("over", 0), ("unknown", 0)] {
        assert_eq!(bench.run(&format!("locks status {name}")).code, 0, "{name}");
        assert_eq!(bench.run(&format!("locks status {name} --exit-code")).code, code, "{name}");
        assert_eq!(bench.run(&format!("locks status {name} --exit-code --json")).code, code, "{name}");
    }
}

#[test]
fn why_tells_what_happened_last_and_names_the_store_that_was_named() {
    let bench = busy();
    let told = bench.tidy(&bench.ok("locks why done"));
    assert!(told.starts_with("Nobody holds 'done'.\nfay released it at [TIME] ([AGE] ago).\n"), "{told}");
    // The same file, by another name than that of the bench.
    let store = format!("sqlite:{}/./store.db?busy=5s", bench.path().display());
    let told = bench.tidy(&bench.ok(&format!("--store {store} locks why deploy/prod")));
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
    let bench = Bench::new();
    let why = bench.json("locks why a");
    insta::assert_snapshot!(shape(why));
}

#[test]
fn what_others_wrote_cannot_break_the_page() {
    let bench = Bench::new();
    let words = ["locks", "acquire", "a", "--meta", "command=x\u{1b}[2J\nholder  root"];
    assert_eq!(bench.run_words(&words).code, 0);
    for page in ["status", "why"] {
        let page = bench.ok(&format!("locks {page} a"));
        assert!(page.contains("x\\u{1b}[2J\\nholder  root"), "{page}");
    }
}
