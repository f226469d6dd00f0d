//! Stores that cannot be one: a clear message that says what to do, the documented exit code, nothing changed.

use std::fs;
use std::path::Path;

use rusqlite::Connection;

use super::support::{Bench, run};

/// Code and message of a command on this store; every other kind of command has to end the same way.
fn refused(bench: &Bench, store: &str) -> String {
    let ran = bench.run(&format!("--store {store} locks list"));
    for words in ["locks acquire a", "history", "run a -- true"] {
        let other = bench.run(&format!("--store {store} {words}"));
        assert_eq!((other.code, other.stdout.as_str()), (ran.code, ""), "{words}: {other:?}");
    }
    assert_eq!(ran.stdout, "");
    bench.tidy(&format!("{}exit code {}\n", ran.stderr, ran.code))
}

fn refused_file(bench: &Bench, name: &str) -> String {
    refused(bench, &format!("sqlite:{}", bench.path().join(name).display()))
}

fn make(path: &Path, sql: &str) {
    Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

#[test]
fn an_unknown_scheme() {
    let bench = Bench::new();
    insta::assert_snapshot!(refused(&bench, "mysql://h"), @"
    leasehold: 'mysql:' is not a store that leasehold knows
    hint: stores are: sqlite:PATH (or sqlite: for the default place), postgres://…, redis://…, dynamodb://TABLE, github://OWNER/REPO, https://HOST of a leasehold server, memory:
    exit code 78
    ");
    insta::assert_snapshot!(refused(&bench, "/tmp/x.db"), @"
    leasehold: '/tmp/x.db' is no store URL: it has no scheme
    hint: for a SQLite file write sqlite:/tmp/x.db; stores are: sqlite:PATH (or sqlite: for the default place), postgres://…, redis://…, dynamodb://TABLE, github://OWNER/REPO, https://HOST of a leasehold server, memory:
    exit code 78
    ");
    insta::assert_snapshot!(refused(&bench, "sqlite:x.db?mode=odd"), @"
    leasehold: 'mode=odd' is not a setting of a SQLite store
    hint: sqlite: knows sync=full, sync=holders and busy=[AGE]
    exit code 78
    ");
}

#[cfg(not(feature = "postgres"))]
#[test]
fn an_engine_that_is_not_built_in() {
    let bench = Bench::new();
    insta::assert_snapshot!(refused(&bench, "postgres://ada@h/db"), @"
    leasehold: this build has no PostgreSQL engine
    hint: build it in with: cargo install --path crates/leasehold-cli --features postgres
    exit code 78
    ");
}

#[test]
fn a_file_that_is_no_database() {
    let bench = Bench::new();
    let text = "This is a text, and somebody still needs it. ".repeat(100);
    fs::write(bench.path().join("notes"), &text).unwrap();
    insta::assert_snapshot!(refused_file(&bench, "notes"), @"
    leasehold: the store [TEMP]/notes is no database
    hint: name another file with --store sqlite:PATH
    cause: Error code 26: file is not a database
    exit code 78
    ");
    assert_eq!(fs::read_to_string(bench.path().join("notes")).unwrap(), text);
}

#[test]
fn a_database_of_another_program() {
    let bench = Bench::new();
    let path = bench.path().join("app.db");
    make(&path, "CREATE TABLE accounts (id); INSERT INTO accounts VALUES (7);");
    let before = fs::read(&path).unwrap();
    insta::assert_snapshot!(refused_file(&bench, "app.db"), @"
    leasehold: [TEMP]/app.db is a database of another program
    hint: name another file with --store sqlite:PATH
    exit code 78
    ");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_store_of_a_newer_leasehold() {
    let bench = Bench::new();
    bench.hold("a");
    let path = bench.path().join("store.db");
    let conn = Connection::open(&path).unwrap();
    let version: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    drop(conn);
    make(&path, "PRAGMA user_version = 999;");
    let told = refused_file(&bench, "store.db").replace(&format!("knows {version}"), "knows [VERSION]");
    insta::assert_snapshot!(told, @"
    leasehold: the store [TEMP]/store.db has schema version 999, made by a newer leasehold; this one knows [VERSION]
    hint: upgrade leasehold, or name another file
    exit code 78
    ");
    make(&path, &format!("PRAGMA user_version = {version};"));
    assert_eq!(bench.json("locks status a")["isLocked"], true);
}

#[test]
fn a_symbolic_link() {
    let bench = Bench::new();
    std::os::unix::fs::symlink(bench.path().join("other.db"), bench.path().join("link.db")).unwrap();
    insta::assert_snapshot!(refused_file(&bench, "link.db"), @"
    leasehold: the store [TEMP]/link.db is a symbolic link, and whoever can change it could exchange the store
    hint: name the file that it points to
    exit code 78
    ");
    assert!(!bench.path().join("other.db").exists());
}

#[test]
fn a_directory() {
    let bench = Bench::new();
    fs::create_dir(bench.path().join("folder")).unwrap();
    insta::assert_snapshot!(refused_file(&bench, "folder"), @"
    leasehold: the store [TEMP]/folder is not a file
    hint: name a file of its own
    exit code 78
    ");
    assert_eq!(fs::read_dir(bench.path().join("folder")).unwrap().count(), 0);
}

#[test]
fn a_place_where_nothing_can_be_made() {
    let bench = Bench::new();
    let told = refused(&bench, "sqlite:/proc/nope.db");
    assert!(told.contains("the store /proc/nope.db cannot be opened"), "{told}");
    assert!(told.contains("hint: "), "{told}");
}

#[test]
fn a_place_where_nothing_may_be_made() {
    let bench = Bench::new();
    // Not even root may make a file there.
    let told = refused(&bench, "sqlite:/sys/nope.db");
    assert!(told.contains("hint: let this user write there"), "{told}");
    assert!(told.ends_with("exit code 77\n"), "{told}");
}

#[test]
fn a_store_that_is_busy_for_too_long() {
    let bench = Bench::new();
    bench.hold("a");
    let path = bench.path().join("store.db");
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE;").unwrap();
    let store = format!("sqlite:{}?busy=50ms", path.display());
    let ran = bench.run(&format!("--store {store} locks acquire b"));
    assert_eq!((ran.code, ran.stdout.as_str()), (69, ""), "{ran:?}");
    assert!(ran.stderr.contains("is busy"), "{}", ran.stderr);
    other.execute_batch("ROLLBACK;").unwrap();
    assert_eq!(bench.json("locks status b")["isLocked"], false);
}

#[test]
fn a_file_in_the_way_of_a_folder() {
    let bench = Bench::new();
    fs::write(bench.path().join("file"), "x").unwrap();
    let told = refused_file(&bench, "file/store.db");
    assert!(told.contains("cannot be opened"), "{told}");
    assert!(told.ends_with("exit code 78\n"), "{told}");
}

#[test]
fn a_damaged_store() {
    let bench = Bench::new();
    bench.hold("a");
    let path = bench.path().join("store.db");
    make(&path, "PRAGMA wal_checkpoint(TRUNCATE);");
    let mut bytes = fs::read(&path).unwrap();
    bytes[100..].fill(0xAA);
    fs::write(&path, &bytes).unwrap();
    let ran = bench.run("locks list");
    assert_eq!((ran.code, ran.stdout.as_str()), (70, ""), "{ran:?}");
    assert!(ran.stderr.contains("is damaged\nhint: restore it"), "{}", ran.stderr);
    assert!(ran.stderr.contains("\ncause: "), "{}", ran.stderr);
}

#[test]
fn no_place_at_all() {
    let bench = Bench::new();
    let mut command = bench.command(["locks", "list"]);
    let ran = run(command.env_remove("LEASEHOLD_STORE").env_remove("HOME").env_remove("XDG_STATE_HOME"));
    assert_eq!(ran.code, 78);
    insta::assert_snapshot!(ran.stderr, @"
    leasehold: there is no default place for the store: neither XDG_STATE_HOME nor HOME is set
    hint: name a file: --store sqlite:/var/lib/leasehold/leasehold.db
    ");
}

#[test]
fn a_lease_in_memory_would_be_a_lie() {
    let bench = Bench::new();
    let ran = bench.run("--store memory: locks acquire a");
    assert_eq!((ran.code, ran.stdout.as_str()), (78, ""));
    insta::assert_snapshot!(ran.stderr, @"
    leasehold: a lease in the store memory: would end with this command
    hint: use a store that lasts, such as sqlite:
    ");
}
