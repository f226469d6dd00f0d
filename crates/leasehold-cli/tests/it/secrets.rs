//! A password in a store's address is seen by the store and by nobody else.

use super::support::{Bench, Ran, run};

/// Addresses with a password in every place that has one. Nobody listens on port 1.
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
fn no_command_tells_the_password_of_its_store() {
    let bench = Bench::new();
    for store in STORES {
        for words in COMMANDS {
            is_silent(words, &bench.run(&format!("--store {store} {words}")));
        }
    }
}

#[test]
fn nor_when_it_comes_from_elsewhere_or_goes_to_a_program() {
    let bench = Bench::new();
    let config = bench.path().join("config.toml");
    for store in STORES {
        let mut command = bench.command(["doctor", "--json"]);
        is_silent(store, &run(command.env("LEASEHOLD_STORE", store)));
        std::fs::write(&config, format!("store = \"{store}\"\n")).unwrap();
        let mut command = bench.command(["doctor"]);
        is_silent(store, &run(command.env("LEASEHOLD_STORE", "").env("LEASEHOLD_CONFIG", &config)));
        is_silent(store, &bench.run(&format!("--json --store {store} locks list")));
    }
}

#[test]
fn nor_when_it_stands_in_the_wrong_place() {
    let bench = Bench::new();
    for words in ["postgres://ada:s3cr3t@h/db locks list", "locks list --stor=postgres://ada:s3cr3t@h/db"] {
        is_silent(words, &bench.run(words));
    }
}
