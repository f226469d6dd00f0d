//! Tokens: made, listed, revoked without a restart.

use serde_json::{Value, json};

use crate::support::{Bench, eventually};

use super::lab::{Served, request};

const SETTINGS: &str = "[workflows.a]\nrunner = \"external\"";

fn ask(served: &Served, token: &str, method: &str, path: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let body = if method == "POST" { "{}" } else { "" };
    request(served.address, method, path, &headers, body).status
}

#[test]
fn a_token_is_good_until_it_is_revoked() {
    let bench = Bench::new();
    let reader = bench.json("token new --name ada --role reader");
    let worker = bench.json("token new --name ci --role worker --lasts 1h");
    let text = |made: &Value| made["token"].as_str().unwrap().to_owned();
    let served = Served::ready(&bench, SETTINGS);
    let start = "/api/v1/workflows/a/executions";
    assert_eq!(served.get("/api/v1/workflows").status, 401);
    assert_eq!(ask(&served, &text(&reader), "GET", "/api/v1/workflows"), 200);
    assert_eq!(ask(&served, &text(&reader), "POST", start), 403);
    assert_eq!(ask(&served, &text(&worker), "POST", start), 201);
    let id = worker["id"].as_str().unwrap();
    let revoked = bench.ok(&format!("token revoke {id}"));
    assert_eq!(revoked, format!("token {id} of 'ci' is revoked\n"));
    eventually("refused", || ask(&served, &text(&worker), "GET", "/api/v1/workflows") == 401);
    let list = bench.ok("token list");
    assert!(list.starts_with("ID") && list.contains("revoked") && list.contains("ada"), "{list}");
    assert_eq!(bench.json("token list").as_array().unwrap().len(), 2);
    assert!(!bench.ok("--json token list").contains("hash"));
}

#[test]
fn a_token_of_the_settings_is_kept_nowhere_else() {
    let bench = Bench::new();
    let made = bench.json("token new --name ops --role admin --print-hash");
    assert_eq!(bench.json("token list"), json!([]));
    let hash = made["hash"].as_str().unwrap();
    let settings = format!("[[tokens]]\nname = \"ops\"\nrole = \"admin\"\nhash = \"{hash}\"");
    let served = Served::ready(&bench, &settings);
    assert_eq!(served.get("/api/v1/workflows").status, 401);
    assert_eq!(ask(&served, made["token"].as_str().unwrap(), "GET", "/api/v1/workflows"), 200);
    let text = bench.ok("token new --name ops --role admin --print-hash");
    assert!(text.contains("[[tokens]]\nname = \"ops\"\nrole = \"admin\"\nhash = \"sha256:"), "{text}");
}

#[test]
fn what_is_no_token_is_refused() {
    let bench = Bench::new();
    assert_eq!(bench.run("token new --name ada --role king").code, 64);
    assert_eq!(bench.run("token new --name ada").code, 64);
    let unknown = bench.run("token revoke 000000000000");
    assert_eq!(unknown.code, 64, "{unknown:?}");
    assert!(unknown.stderr.contains("leasehold token list"), "{unknown:?}");
    let memory = bench.run("--store memory: token new --name ada --role reader");
    assert_eq!(memory.code, 78, "{memory:?}");
}
