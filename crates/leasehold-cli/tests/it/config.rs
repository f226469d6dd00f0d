//! Which store is used: the flag, the environment, the config file, the default.

use std::fs;
use std::path::Path;

use super::support::{Bench, Ran, run};

fn write_config(bench: &Bench, text: &str) {
    let folder = bench.path().join("config/leasehold");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.toml"), text).unwrap();
}

/// Where the store is, as `doctor` sees it.
fn doctor(bench: &Bench, arguments: &[&str], environment: &[(&str, &str)]) -> Ran {
    let mut command = bench.command(arguments);
    command.env_remove("LEASEHOLD_STORE").envs(environment.iter().copied());
    run(command.arg("doctor"))
}

fn chosen(bench: &Bench, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let ran = doctor(bench, arguments, environment);
    assert_eq!(ran.code, 0, "{ran:?}");
    let line = ran.stdout.lines().find(|line| line.starts_with("✓ store")).unwrap().to_owned();
    bench.tidy(&line)
}

#[test]
fn the_flag_comes_before_the_environment_before_the_file_before_the_default() {
    let bench = Bench::new();
    let at = |name: &str| format!("sqlite:{}", bench.path().join(name).display());
    let (flag, environment) = (at("flag.db"), at("environment.db"));
    let environment = [("LEASEHOLD_STORE", environment.as_str())];
    assert_eq!(chosen(&bench, &[], &[]), "✓ store  sqlite: (the default)");
    assert!(bench.path().join("state/leasehold/leasehold.db").exists());
    write_config(&bench, &format!("store = \"{}\"", at("file.db")));
    assert_eq!(
        chosen(&bench, &[], &[]),
        "✓ store  sqlite:[TEMP]/file.db (from [TEMP]/config/leasehold/config.toml)"
    );
    assert_eq!(
        chosen(&bench, &[], &environment),
        "✓ store  sqlite:[TEMP]/environment.db (from LEASEHOLD_STORE)"
    );
    assert_eq!(
        chosen(&bench, &["--store", &flag], &environment),
        "✓ store  sqlite:[TEMP]/flag.db (from --store)"
    );
    assert_eq!(
        chosen(&bench, &[], &[("LEASEHOLD_STORE", ""), ("LEASEHOLD_CONFIG", "")]),
        chosen(&bench, &[], &[])
    );
}

#[test]
fn a_named_file_has_to_be_there() {
    let bench = Bench::new();
    let path = bench.path().join("mine.toml");
    let environment = [("LEASEHOLD_CONFIG", path.to_str().unwrap())];
    let ran = doctor(&bench, &[], &environment);
    assert_eq!(ran.code, 78);
    assert!(ran.stdout.contains("mine.toml cannot be read"), "{}", ran.stdout);
    fs::write(&path, "store = \"sqlite:\"").unwrap();
    assert_eq!(chosen(&bench, &[], &environment), "✓ store  sqlite: (from [TEMP]/mine.toml)");
}

#[test]
fn mistakes_in_the_file_are_named() {
    let bench = Bench::new();
    let mut told = String::new();
    for text in ["stroe = \"sqlite:\"\ntll = \"5s\"", "store = ", "store = 5", "store = \"sqlite:here.db\""] {
        write_config(&bench, text);
        let ran = run(bench.command(["locks", "list"]).env_remove("LEASEHOLD_STORE"));
        assert_eq!((ran.code, ran.stdout.as_str()), (78, ""), "{text}: {ran:?}");
        told += &bench.tidy(&ran.stderr);
    }
    insta::assert_snapshot!(told);
    assert!(!Path::new("here.db").exists());
}
