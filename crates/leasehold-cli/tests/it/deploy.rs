//! The command lines in `deploy/` are valid.

use std::path::Path;
use std::process::Command;

/// Returns the arguments of each call of leasehold in a file of `deploy/`.
fn calls(file: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let text = match file {
        // One argument per line, until the list ends.
        "kubernetes/cronjob.yaml" => {
            let list = text.split("command:\n").nth(1).unwrap().lines();
            let words =
                list.map_while(|line| line.trim().strip_prefix("- ")).map(|word| word.trim_matches('"'));
            words.collect::<Vec<_>>().join(" ")
        }
        _ => text,
    };
    let mut calls = Vec::new();
    for line in text.lines() {
        let call = match line.trim() {
            line if line.starts_with("Exec") => line.split_once("/leasehold ").unwrap().1.to_owned(),
            line if line.starts_with("CMD [") || line.starts_with("args: [") => {
                let list = line.split_once('[').unwrap().1.trim_end_matches(']');
                list.replace([',', '"'], "")
            }
            line if line.starts_with("leasehold ") => line["leasehold ".len()..].to_owned(),
            _ => continue,
        };
        calls.push(call.split_whitespace().map(str::to_owned).collect());
    }
    calls
}

fn help(words: &[&str]) -> Option<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_leasehold")).args(words).arg("--help").output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[test]
fn every_flag_in_deploy_is_one_that_its_command_has() {
    let files =
        ["systemd/leasehold.service", "Dockerfile", "kubernetes/server.yaml", "kubernetes/cronjob.yaml"];
    for file in files {
        let calls = calls(file);
        assert!(!calls.is_empty(), "{file} calls leasehold nowhere");
        for call in calls {
            let command = call[0].as_str();
            let help = help(&[command]).unwrap_or_else(|| panic!("{file}: there is no {command}: {call:?}"));
            let flags = call.iter().take_while(|word| *word != "--").filter(|word| word.starts_with('-'));
            for flag in flags {
                assert!(help.contains(flag.as_str()), "{file}: {command} has no {flag}");
            }
        }
    }
}
