//! Choice of the store: the flag, the environment, the config file, the default.

use std::fs;
use std::path::Path;

use super::support::{Ran, Sandbox, run};

fn write_config(sandbox: &Sandbox, text: &str) {
    let folder = sandbox.path().join("config/leasehold");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.toml"), text).unwrap();
}

/// Runs `doctor` without `LEASEHOLD_STORE`.
fn doctor(sandbox: &Sandbox, arguments: &[&str], environment: &[(&str, &str)]) -> Ran {
    let mut command = sandbox.command(arguments);
    command.env_remove("LEASEHOLD_STORE").envs(environment.iter().copied());
    run(command.arg("doctor"))
}

fn chosen(sandbox: &Sandbox, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let ran = doctor(sandbox, arguments, environment);
    assert_eq!(ran.code, 0, "{ran:?}");
    let line = ran.stdout.lines().find(|line| line.starts_with("✓ store")).unwrap().to_owned();
    sandbox.tidy(&line)
}

#[test]
fn the_flag_comes_before_the_environment_before_the_file_before_the_default() {
    let sandbox = Sandbox::new();
    let at = |name: &str| format!("sqlite:{}", sandbox.path().join(name).display());
    let (flag, environment) = (at("flag.db"), at("environment.db"));
    let environment = [("LEASEHOLD_STORE", environment.as_str())];
    assert_eq!(chosen(&sandbox, &[], &[]), "✓ store  sqlite: (the default)");
    assert!(sandbox.path().join("state/leasehold/leasehold.db").exists());
    write_config(&sandbox, &format!("store = \"{}\"", at("file.db")));
    assert_eq!(
        chosen(&sandbox, &[], &[]),
        "✓ store  sqlite:[TEMP]/file.db (from [TEMP]/config/leasehold/config.toml)"
    );
    assert_eq!(
        chosen(&sandbox, &[], &environment),
        "✓ store  sqlite:[TEMP]/environment.db (from LEASEHOLD_STORE)"
    );
    assert_eq!(
        chosen(&sandbox, &["--store", &flag], &environment),
        "✓ store  sqlite:[TEMP]/flag.db (from --store)"
    );
    assert_eq!(
        chosen(&sandbox, &[], &[("LEASEHOLD_STORE", ""), ("LEASEHOLD_CONFIG", "")]),
        chosen(&sandbox, &[], &[])
    );
}

#[test]
fn a_named_config_file_must_exist() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("mine.toml");
    let environment = [("LEASEHOLD_CONFIG", path.to_str().unwrap())];
    let ran = doctor(&sandbox, &[], &environment);
    assert_eq!(ran.code, 78);
    assert!(ran.stdout.contains("mine.toml cannot be read"), "{}", ran.stdout);
    fs::write(&path, "store = \"sqlite:\"").unwrap();
    assert_eq!(chosen(&sandbox, &[], &environment), "✓ store  sqlite: (from [TEMP]/mine.toml)");
}

#[test]
fn mistakes_in_the_file_are_named() {
    let sandbox = Sandbox::new();
    let mut told = String::new();
    for text in ["stroe = \"sqlite:\"\ntll = \"5s\"", "store = ", "store = 5", "store = \"sqlite:here.db\""] {
        write_config(&sandbox, text);
        let ran = run(sandbox.command(["locks", "list"]).env_remove("LEASEHOLD_STORE"));
        assert_eq!((ran.code, ran.stdout.as_str()), (78, ""), "{text}: {ran:?}");
        told += &sandbox.tidy(&ran.stderr);
    }
    insta::assert_snapshot!(told);
    assert!(!Path::new("here.db").exists());
}
