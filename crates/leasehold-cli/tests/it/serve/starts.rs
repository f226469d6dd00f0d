//! Start of a server, and errors that prevent it.

use std::fs;

use crate::support::{Sandbox, eventually};

use super::support::{Served, request};

#[test]
fn a_server_responds_until_it_is_stopped() {
    let sandbox = Sandbox::new();
    let served = Served::with(&sandbox, &[]);
    eventually("ready", || served.get("/readyz").status == 200);
    assert_eq!(served.get("/healthz").status, 200);
    assert!(served.get("/openapi.json").body["paths"]["/api/webhooks/{triggerId}"].is_object());
    served.signal("-TERM");
    assert_eq!(served.wait().code, 0);
}

#[test]
fn two_servers_do_not_share_a_port() {
    let sandbox = Sandbox::new();
    let served = Served::with(&sandbox, &[]);
    let address = served.address.to_string();
    let second = sandbox.run(&format!("serve --listen {address}"));
    assert_eq!(second.code, 69, "{second:?}");
    assert_eq!(
        second.stderr,
        format!(
            "leasehold: cannot listen on {address}: another program listens there already\n\
             hint: end it, or choose another address with --listen\n"
        )
    );
    let json = sandbox.run(&format!("--json serve --listen {address}"));
    assert!(json.stderr.contains("\"code\":\"ADDRESS_TAKEN\""), "{json:?}");
}

#[test]
fn other_machines_are_admitted_only_with_a_token() {
    let sandbox = Sandbox::new();
    let refused = sandbox.run("serve --listen 0.0.0.0:0");
    assert_eq!((refused.code, refused.stdout.as_str()), (78, ""), "{refused:?}");
    assert!(refused.stderr.contains("there is no token"), "{refused:?}");
    assert!(refused.stderr.contains(" token new --name NAME --role admin"), "{refused:?}");
    assert!(!refused.stderr.contains("listening"), "{refused:?}");
    sandbox.ok("token new --name ada --role admin");
    let served = Served::with(&sandbox, &["--listen", "0.0.0.0:0"]);
    let here = (std::net::Ipv4Addr::LOCALHOST, served.address.port()).into();
    eventually("up", || request(here, "GET", "/readyz", &[], "").status == 200);
    assert_eq!(request(here, "GET", "/api/v1/workflows", &[], "").status, 401);
}

#[test]
fn mistakes_in_the_settings_are_named_with_file_line_and_key() {
    let sandbox = Sandbox::new();
    let file = sandbox.path().join("leasehold.toml");
    let told = |text: &str| {
        fs::write(&file, text).unwrap();
        let ran = sandbox.run("serve --config leasehold.toml --check");
        assert_eq!(ran.code, 78, "{ran:?}");
        sandbox.tidy(&ran.stderr)
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
    let gone = sandbox.run("serve --config other.toml");
    assert_eq!(gone.code, 78, "{gone:?}");
    assert!(gone.stderr.contains("other.toml cannot be read"), "{gone:?}");
}

#[test]
fn valid_settings_pass_the_check() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path().join("leasehold.toml"), "[workflows.a]\ncommand = [\"true\"]").unwrap();
    let said = sandbox.ok("serve --config leasehold.toml --check");
    assert_eq!(said, "the settings are valid: 1 workflow, 0 triggers, 0 schedules, 0 tokens\n");
    assert_eq!(sandbox.json("serve --config leasehold.toml --check")["workflows"], 1);
}

#[test]
fn an_invalid_store_is_an_error_at_once() {
    let sandbox = Sandbox::new();
    for (url, code) in [("mysql://h/db", 78), ("nonsense", 78)] {
        let ran = sandbox.run(&format!("--store {url} serve --listen 127.0.0.1:0"));
        assert_eq!(ran.code, code, "{ran:?}");
    }
}

#[test]
fn the_store_of_the_settings_comes_after_the_flag_and_the_environment() {
    let sandbox = Sandbox::new();
    let store = sandbox.path().join("other.db");
    let file = sandbox.path().join("leasehold.toml");
    fs::write(&file, format!("store = \"sqlite:{}\"", store.display())).unwrap();
    let words = ["serve", "--config", "leasehold.toml", "--check", "--json"];
    let mut command = sandbox.command(words);
    let from_environment = crate::support::run(&mut command).stdout;
    assert!(from_environment.contains("store.db"), "{from_environment}");
    let from_file = crate::support::run(sandbox.command(words).env("LEASEHOLD_STORE", "")).stdout;
    assert!(from_file.contains("other.db"), "{from_file}");
}

#[test]
fn schedules_of_the_settings_are_set() {
    let sandbox = Sandbox::new();
    let settings = "[workflows.a]\ncommand = [\"true\"]\n[[schedules]]\nname = \"nightly\"\n\
                    cron = \"0 3 * * *\"\nzone = \"Europe/Berlin\"\nworkflow = \"a\"\ninput = { b = 1 }";
    let _served = Served::ready(&sandbox, settings);
    let schedules = sandbox.json("schedules list");
    assert_eq!((&schedules[0]["name"], &schedules[0]["queue"]), (&"nightly".into(), &"workflow/a".into()));
    assert_eq!(schedules[0]["lock"], "workflow/a");
}
