//! How a server starts, or why it does not.

use std::fs;

use crate::support::{Bench, eventually};

use super::lab::{Served, request};

#[test]
fn a_server_answers_until_it_is_told_to_end() {
    let bench = Bench::new();
    let served = Served::with(&bench, &[]);
    eventually("ready", || served.get("/readyz").status == 200);
    assert_eq!(served.get("/healthz").status, 200);
    assert!(served.get("/openapi.json").body["paths"]["/api/webhooks/{triggerId}"].is_object());
    served.signal("-TERM");
    assert_eq!(served.wait().code, 0);
}

#[test]
fn two_servers_do_not_share_a_port() {
    let bench = Bench::new();
    let served = Served::with(&bench, &[]);
    let address = served.address.to_string();
    let second = bench.run(&format!("serve --listen {address}"));
    assert_eq!(second.code, 69, "{second:?}");
    assert_eq!(
        second.stderr,
        format!(
            "leasehold: cannot listen on {address}: another program listens there already\n\
             hint: end it, or choose another address with --listen\n"
        )
    );
    let json = bench.run(&format!("--json serve --listen {address}"));
    assert!(json.stderr.contains("\"code\":\"ADDRESS_TAKEN\""), "{json:?}");
}

#[test]
fn others_are_let_in_only_with_a_token() {
    let bench = Bench::new();
    let refused = bench.run("serve --listen 0.0.0.0:0");
    assert_eq!((refused.code, refused.stdout.as_str()), (78, ""), "{refused:?}");
    assert!(refused.stderr.contains("there is no token"), "{refused:?}");
    assert!(refused.stderr.contains(" token new --name NAME --role admin"), "{refused:?}");
    assert!(!refused.stderr.contains("listening"), "{refused:?}");
    bench.ok("token new --name ada --role admin");
    let served = Served::with(&bench, &["--listen", "0.0.0.0:0"]);
    let here = (std::net::Ipv4Addr::LOCALHOST, served.address.port()).into();
    eventually("up", || request(here, "GET", "/readyz", &[], "").status == 200);
    assert_eq!(request(here, "GET", "/api/v1/workflows", &[], "").status, 401);
}

#[test]
fn mistakes_in_the_settings_are_named_with_file_line_and_key() {
    let bench = Bench::new();
    let file = bench.path().join("leasehold.toml");
    let told = |text: &str| {
        fs::write(&file, text).unwrap();
        let ran = bench.run("serve --config leasehold.toml --check");
        assert_eq!(ran.code, 78, "{ran:?}");
        bench.tidy(&ran.stderr)
    };
    insta::assert_snapshot!(
        [
            told("[workflows.a]\ncomand = [\"true\"]"),
            told("grace = \"soon\""),
            told("[workflows.a]"),
            told("[workflows.a]\ncommand = [\"no-such-program-anywhere\"]"),
            told("[workflows.a]\ncommand = [\"true\"]\ndirectory = \"nowhere\""),
            told("[workflows.a]\ncommand = [\"true\"]\nttl = \"500ms\""),
            told("[triggers.x]\nworkflow = \"a\"\nscheme = \"none\""),
        ]
        .join("\n")
    );
    let gone = bench.run("serve --config other.toml");
    assert_eq!(gone.code, 78, "{gone:?}");
    assert!(gone.stderr.contains("other.toml cannot be read"), "{gone:?}");
}

#[test]
fn settings_that_can_be_used_are_said_to_be() {
    let bench = Bench::new();
    fs::write(bench.path().join("leasehold.toml"), "[workflows.a]\ncommand = [\"true\"]").unwrap();
    let said = bench.ok("serve --config leasehold.toml --check");
    assert_eq!(said, "the settings can be used: 1 workflow, 0 triggers, 0 schedules, 0 tokens\n");
    assert_eq!(bench.json("serve --config leasehold.toml --check")["workflows"], 1);
}

#[test]
fn a_store_that_cannot_be_is_an_error_at_once() {
    let bench = Bench::new();
    for (url, code) in [("mysql://h/db", 78), ("nonsense", 78)] {
        let ran = bench.run(&format!("--store {url} serve --listen 127.0.0.1:0"));
        assert_eq!(ran.code, code, "{ran:?}");
    }
}

#[test]
fn the_store_of_the_settings_comes_after_the_flag_and_the_environment() {
    let bench = Bench::new();
    let store = bench.path().join("other.db");
    let file = bench.path().join("leasehold.toml");
    fs::write(&file, format!("store = \"sqlite:{}\"", store.display())).unwrap();
    let words = ["serve", "--config", "leasehold.toml", "--check", "--json"];
    let mut command = bench.command(words);
    let from_environment = crate::support::run(&mut command).stdout;
    assert!(from_environment.contains("store.db"), "{from_environment}");
    let from_file = crate::support::run(bench.command(words).env("LEASEHOLD_STORE", "")).stdout;
    assert!(from_file.contains("other.db"), "{from_file}");
}

#[test]
fn schedules_of_the_settings_are_set() {
    let bench = Bench::new();
    let settings = "[workflows.a]\ncommand = [\"true\"]\n[[schedules]]\nname = \"nightly\"\n\
                    cron = \"0 3 * * *\"\nzone = \"Europe/Berlin\"\nworkflow = \"a\"\ninput = { b = 1 }";
    let _served = Served::ready(&bench, settings);
    let schedules = bench.json("schedules list");
    assert_eq!((&schedules[0]["name"], &schedules[0]["queue"]), (&"nightly".into(), &"workflow/a".into()));
    assert_eq!(schedules[0]["lock"], "workflow/a");
}
