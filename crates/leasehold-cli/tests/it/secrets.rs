//! A password in the URL of a store is never printed.

use super::support::{Ran, Sandbox, run};

/// URLs with a password in every possible position. No process listens on port 1.
const STORES: [&str; 7] = [
    "postgres://ada:s3cr3t@127.0.0.1:1/db",
    "postgres://ada:s3cr3t@with@s3cr3t@127.0.0.1:1/db",
    "postgres://127.0.0.1:1/db?user=ada&password=s3cr3t",
    "redis://:s3cr3t@127.0.0.1:1/0",
    "redis+sentinel://ada:s3cr3t@127.0.0.1:1/service?sentinel_password=s3cr3t",
    "mysql://ada:s3cr3t@127.0.0.1/db?password=s3cr3t",
    "sqlite:/dev/null/x.db?password=s3cr3t",
];

const COMMANDS: [&str; 10] = [
    "locks list",
    "locks why a",
    "locks acquire a",
    "locks release a --force --yes --reason b",
    "history a",
    "watch",
    "store init",
    "doctor",
    "fence check a --token 1",
    "run a -- true",
];

fn is_silent(how: &str, ran: &Ran) {
    assert_ne!(ran.code, 0, "{how}: {ran:?}");
    let told = format!("{}{}", ran.stdout, ran.stderr);
    assert!(!told.contains("s3cr3t"), "{how}: {told}");
}

#[test]
fn no_command_prints_the_password_of_its_store() {
    let sandbox = Sandbox::new();
    for store in STORES {
        for words in COMMANDS {
            is_silent(words, &sandbox.run(&format!("--store {store} {words}")));
        }
    }
}

#[test]
fn no_password_from_other_sources_or_in_json() {
    let sandbox = Sandbox::new();
    let config = sandbox.path().join("config.toml");
    for store in STORES {
        let mut command = sandbox.command(["doctor", "--json"]);
        is_silent(store, &run(command.env("LEASEHOLD_STORE", store)));
        std::fs::write(&config, format!("store = \"{store}\"\n")).unwrap();
        let mut command = sandbox.command(["doctor"]);
        is_silent(store, &run(command.env("LEASEHOLD_STORE", "").env("LEASEHOLD_CONFIG", &config)));
        is_silent(store, &sandbox.run(&format!("--json --store {store} locks list")));
    }
}

#[test]
fn no_password_in_a_wrong_position() {
    let sandbox = Sandbox::new();
    for words in ["postgres://ada:s3cr3t@h/db locks list", "locks list --stor=postgres://ada:s3cr3t@h/db"] {
        is_silent(words, &sandbox.run(words));
    }
}
