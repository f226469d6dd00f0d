//! Tokens: created, listed, revoked without a restart.

use serde_json::{Value, json};

use crate::support::{Sandbox, eventually};

use super::support::{Served, request};

const SETTINGS: &str = "[workflows.a]\nrunner = \"external\"";

fn ask(served: &Served, token: &str, method: &str, path: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let body = if method == "POST" { "{}" } else { "" };
    request(served.address, method, path, &headers, body).status
}

#[test]
fn a_token_is_valid_until_it_is_revoked() {
    let sandbox = Sandbox::new();
    let reader = sandbox.json("token new --name ada --role reader");
    let worker = sandbox.json("token new --name ci --role worker --lasts 1h");
    let text = |made: &Value| made["token"].as_str().unwrap().to_owned();
    let served = Served::ready(&sandbox, SETTINGS);
    let start = "/api/v1/workflows/a/executions";
    assert_eq!(served.get("/api/v1/workflows").status, 401);
    assert_eq!(ask(&served, &text(&reader), "GET", "/api/v1/workflows"), 200);
    assert_eq!(ask(&served, &text(&reader), "POST", start), 403);
    assert_eq!(ask(&served, &text(&worker), "POST", start), 201);
    let id = worker["id"].as_str().unwrap();
    let revoked = sandbox.ok(&format!("token revoke {id}"));
    assert_eq!(revoked, format!("token {id} of 'ci' is revoked\n"));
    eventually("refused", || ask(&served, &text(&worker), "GET", "/api/v1/workflows") == 401);
    let list = sandbox.ok("token list");
    assert!(list.starts_with("ID") && list.contains("revoked") && list.contains("ada"), "{list}");
    assert_eq!(sandbox.json("token list").as_array().unwrap().len(), 2);
    assert!(!sandbox.ok("--json token list").contains("hash"));
}

#[test]
fn a_token_of_the_settings_is_not_stored() {
    let sandbox = Sandbox::new();
    let made = sandbox.json("token new --name ops --role admin --print-hash");
    assert_eq!(sandbox.json("token list"), json!([]));
    let hash = made["hash"].as_str().unwrap();
    let settings = format!("[[tokens]]\nname = \"ops\"\nrole = \"admin\"\nhash = \"{hash}\"");
    let served = Served::ready(&sandbox, &settings);
    assert_eq!(served.get("/api/v1/workflows").status, 401);
    assert_eq!(ask(&served, made["token"].as_str().unwrap(), "GET", "/api/v1/workflows"), 200);
    let text = sandbox.ok("token new --name ops --role admin --print-hash");
    assert!(text.contains("[[tokens]]\nname = \"ops\"\nrole = \"admin\"\nhash = \"sha256:"), "{text}");
}

#[test]
fn an_invalid_token_is_refused() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run("token new --name ada --role king").code, 64);
    assert_eq!(sandbox.run("token new --name ada").code, 64);
    let unknown = sandbox.run("token revoke 000000000000");
    assert_eq!(unknown.code, 1, "{unknown:?}");
    assert!(unknown.stderr.contains("token list"), "{unknown:?}");
    let memory = sandbox.run("--store memory: token new --name ada --role reader");
    assert_eq!(memory.code, 78, "{memory:?}");
}

/// The first start creates a token that only its user can read, and the commands of that user find
/// it.
#[test]
fn without_tokens_a_server_is_closed_to_other_users() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    let none = sandbox.run("token local");
    assert_eq!(none.code, 78, "{none:?}");
    let served = Served::closed(&sandbox, &[]);
    eventually("ready", || served.get("/readyz").status == 200);
    assert_eq!(served.get("/api/v1/locks").status, 401);
    let file = sandbox.path().join("state/leasehold/local-token");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let token = sandbox.ok("token local");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), token);
    assert_eq!(sandbox.json("token local")["file"], file.to_str().unwrap());
    assert_eq!(ask(&served, token.trim(), "GET", "/api/v1/locks"), 200);
    // A command on this machine needs only the address; a command of a user that cannot read the
    // file is refused.
    let store = format!("--store http://{} locks list", served.address);
    sandbox.ok(&store);
    let other = crate::support::run(
        sandbox.command(store.split(' ')).env("XDG_STATE_HOME", sandbox.path().join("other")),
    );
    assert_ne!(other.code, 0, "{other:?}");
    assert!(other.stderr.contains("token"), "{other:?}");
    // The next start uses the same one.
    served.signal("-TERM");
    assert_eq!(served.wait().code, 0);
    let served = Served::closed(&sandbox, &[]);
    eventually("ready", || served.get("/readyz").status == 200);
    assert_eq!(ask(&served, token.trim(), "GET", "/api/v1/locks"), 200);
    served.signal("-TERM");
    assert_eq!(served.wait().code, 0);
    // As soon as another token exists, neither the local token nor --open is accepted.
    sandbox.ok("token new --name ada --role admin");
    let served = Served::closed(&sandbox, &["--open"]);
    eventually("ready", || served.get("/readyz").status == 200);
    assert_eq!(ask(&served, token.trim(), "GET", "/api/v1/locks"), 401);
    assert_eq!(served.get("/api/v1/locks").status, 401);
}

#[test]
fn a_local_token_that_others_can_read_is_not_used() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path().join("state/leasehold");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("local-token"), "lh_0123456789ab_x").unwrap();
    std::fs::set_permissions(folder.join("local-token"), std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .unwrap();
    let refused = sandbox.run("serve --listen 127.0.0.1:0");
    assert_eq!(refused.code, 78, "{refused:?}");
    assert!(
        refused.stderr.contains("local-token") && refused.stderr.contains("remove the file"),
        "{refused:?}"
    );
}
