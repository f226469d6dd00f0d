//! Invalid stores: a clear message with a hint, the documented exit code, and no change.

use std::fs;
use std::path::Path;

use rusqlite::Connection;

use super::support::{Sandbox, run};

/// Returns the exit code and message of a command on this store; every other kind of command must
/// end the same way.
fn refused(sandbox: &Sandbox, store: &str) -> String {
    let ran = sandbox.run(&format!("--store {store} locks list"));
    for words in ["locks acquire a", "history", "run a -- true"] {
        let other = sandbox.run(&format!("--store {store} {words}"));
        assert_eq!((other.code, other.stdout.as_str()), (ran.code, ""), "{words}: {other:?}");
    }
    assert_eq!(ran.stdout, "");
    sandbox.tidy(&format!("{}exit code {}\n", ran.stderr, ran.code))
}

fn refused_file(sandbox: &Sandbox, name: &str) -> String {
    refused(sandbox, &format!("sqlite:{}", sandbox.path().join(name).display()))
}

fn make(path: &Path, sql: &str) {
    Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

#[test]
fn an_unknown_scheme() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!(refused(&sandbox, "mysql://h"), @"
    leasehold: 'mysql:' is not a store that leasehold knows
    hint: stores are: sqlite:PATH (or sqlite: for the default place), postgres://…, redis://…, dynamodb://TABLE, github://OWNER/REPO, https://HOST of a leasehold server, memory:
    exit code 78
    ");
    insta::assert_snapshot!(refused(&sandbox, "/tmp/x.db"), @"
    leasehold: '/tmp/x.db' is no store URL: it has no scheme
    hint: for a SQLite file write sqlite:/tmp/x.db; stores are: sqlite:PATH (or sqlite: for the default place), postgres://…, redis://…, dynamodb://TABLE, github://OWNER/REPO, https://HOST of a leasehold server, memory:
    exit code 78
    ");
    insta::assert_snapshot!(refused(&sandbox, "sqlite:x.db?mode=odd"), @"
    leasehold: unknown setting 'mode' of a SQLite store
    hint: the settings of a SQLite store are sync=full|holders, busy=[AGE]
    exit code 78
    ");
}

#[cfg(not(feature = "postgres"))]
#[test]
fn an_engine_that_is_not_built_in() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!(refused(&sandbox, "postgres://ada@h/db"), @"
    leasehold: this build has no PostgreSQL engine
    hint: build it in with: cargo install --path crates/leasehold-cli --features postgres
    exit code 78
    ");
}

#[test]
fn a_file_that_is_no_database() {
    let sandbox = Sandbox::new();
    let text = "This is a text that is still needed. ".repeat(100);
    fs::write(sandbox.path().join("notes"), &text).unwrap();
    insta::assert_snapshot!(refused_file(&sandbox, "notes"), @"
    leasehold: the store [TEMP]/notes is not a database
    hint: name another file with --store sqlite:PATH
    cause: Error code 26: file is not a database
    exit code 78
    ");
    assert_eq!(fs::read_to_string(sandbox.path().join("notes")).unwrap(), text);
}

#[test]
fn a_database_of_another_program() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("app.db");
    make(&path, "CREATE TABLE accounts (id); INSERT INTO accounts VALUES (7);");
    let before = fs::read(&path).unwrap();
    insta::assert_snapshot!(refused_file(&sandbox, "app.db"), @"
    leasehold: [TEMP]/app.db is a database of another program
    hint: name another file with --store sqlite:PATH
    exit code 78
    ");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_store_of_a_newer_leasehold() {
    let sandbox = Sandbox::new();
    sandbox.hold("a");
    let path = sandbox.path().join("store.db");
    let conn = Connection::open(&path).unwrap();
    let version: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    drop(conn);
    make(&path, "PRAGMA user_version = 999;");
    let told = refused_file(&sandbox, "store.db").replace(&format!("up to {version}"), "up to [VERSION]");
    insta::assert_snapshot!(told, @"
    leasehold: the store [TEMP]/store.db has schema version 999, made by a newer leasehold; this one supports versions up to [VERSION]
    hint: upgrade leasehold, or name another file
    exit code 78
    ");
    make(&path, &format!("PRAGMA user_version = {version};"));
    assert_eq!(sandbox.json("locks status a")["isLocked"], true);
}

#[test]
fn a_symbolic_link() {
    let sandbox = Sandbox::new();
    std::os::unix::fs::symlink(sandbox.path().join("other.db"), sandbox.path().join("link.db")).unwrap();
    insta::assert_snapshot!(refused_file(&sandbox, "link.db"), @"
    leasehold: the store [TEMP]/link.db is a symbolic link: a user who can change the link could replace the store
    hint: name the file that it points to
    exit code 78
    ");
    assert!(!sandbox.path().join("other.db").exists());
}

#[test]
fn a_directory() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path().join("folder")).unwrap();
    insta::assert_snapshot!(refused_file(&sandbox, "folder"), @"
    leasehold: the store [TEMP]/folder is not a file
    hint: name a file
    exit code 78
    ");
    assert_eq!(fs::read_dir(sandbox.path().join("folder")).unwrap().count(), 0);
}

#[test]
fn a_path_that_cannot_be_created() {
    let sandbox = Sandbox::new();
    let told = refused(&sandbox, "sqlite:/proc/nope.db");
    assert!(told.contains("the store /proc/nope.db cannot be opened"), "{told}");
    assert!(told.contains("hint: "), "{told}");
}

#[test]
fn a_path_without_permission() {
    let sandbox = Sandbox::new();
    // Even root cannot create a file there.
    let told = refused(&sandbox, "sqlite:/sys/nope.db");
    assert!(told.contains("hint: grant this user write permission there"), "{told}");
    assert!(told.ends_with("exit code 77\n"), "{told}");
}

#[test]
fn a_store_that_is_busy_for_too_long() {
    let sandbox = Sandbox::new();
    sandbox.hold("a");
    let path = sandbox.path().join("store.db");
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE;").unwrap();
    let store = format!("sqlite:{}?busy=50ms", path.display());
    let ran = sandbox.run(&format!("--store {store} locks acquire b"));
    assert_eq!((ran.code, ran.stdout.as_str()), (69, ""), "{ran:?}");
    assert!(ran.stderr.contains("is busy"), "{}", ran.stderr);
    other.execute_batch("ROLLBACK;").unwrap();
    assert_eq!(sandbox.json("locks status b")["isLocked"], false);
}

#[test]
fn a_file_in_place_of_a_folder() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path().join("file"), "x").unwrap();
    let told = refused_file(&sandbox, "file/store.db");
    assert!(told.contains("cannot be opened"), "{told}");
    assert!(told.ends_with("exit code 78\n"), "{told}");
}

#[test]
fn a_damaged_store() {
    let sandbox = Sandbox::new();
    sandbox.hold("a");
    let path = sandbox.path().join("store.db");
    make(&path, "PRAGMA wal_checkpoint(TRUNCATE);");
    let mut bytes = fs::read(&path).unwrap();
    bytes[100..].fill(0xAA);
    fs::write(&path, &bytes).unwrap();
    let ran = sandbox.run("locks list");
    assert_eq!((ran.code, ran.stdout.as_str()), (70, ""), "{ran:?}");
    assert!(ran.stderr.contains("is damaged\nhint: restore it"), "{}", ran.stderr);
    assert!(ran.stderr.contains("\ncause: "), "{}", ran.stderr);
}

#[test]
fn no_default_path() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(["locks", "list"]);
    let ran = run(command.env_remove("LEASEHOLD_STORE").env_remove("HOME").env_remove("XDG_STATE_HOME"));
    assert_eq!(ran.code, 78);
    insta::assert_snapshot!(ran.stderr, @"
    leasehold: the store has no default path: neither XDG_STATE_HOME nor HOME is an absolute path
    hint: name a file, such as sqlite:/var/lib/leasehold/leasehold.db
    ");
}

#[test]
fn a_lease_in_memory_is_refused() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run("--store memory: locks acquire a");
    assert_eq!((ran.code, ran.stdout.as_str()), (78, ""));
    insta::assert_snapshot!(ran.stderr, @"
    leasehold: a lease in the store memory: would end with this command
    hint: use a persistent store, such as sqlite:
    ");
}
