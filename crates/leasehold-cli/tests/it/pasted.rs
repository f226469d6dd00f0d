//! Shell blocks of the documentation, run one after the other as a reader would paste them, against
//! a server.

use std::path::Path;
use std::process::Command;

use super::serve::support::Served;
use super::support::{Ran, Sandbox, eventually, run};

/// Returns the `sh` blocks of a page, from one heading to another.
fn blocks(page: &str, from: &str, to: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join(page)).unwrap();
    let start = text.find(from).unwrap_or_else(|| panic!("{page} has no {from}"));
    let end = text[start..].find(to).map_or(text.len(), |end| start + end);
    let mut blocks = text[start..end].split("```sh\n").skip(1);
    let mut found = Vec::new();
    for block in &mut blocks {
        found.push(block.split("```").next().unwrap().to_owned());
    }
    assert!(!found.is_empty(), "{page}");
    found
}

/// Runs these blocks in a shell with our binary on its path.
fn paste(sandbox: &Sandbox, script: &str) -> Ran {
    let plain = sandbox.command([""; 0]);
    let ours = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap().to_owned();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash");
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.env("PATH", format!("{}:{path}", ours.display())).env("HOSTNAME", "here");
    run(shell.args(["-eu", "-c", script]).current_dir(sandbox.path()))
}

/// Text in every error response of a server.
fn has_no_problem(ran: &Ran) {
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(!ran.stdout.contains("\"success\":false"), "{}", ran.stdout);
}

/// Runs the blocks of these pages that need only a server, in order.
#[test]
fn the_blocks_about_http_can_be_pasted() {
    let sandbox = Sandbox::new();
    let served = Served::closed(&sandbox, &[]);
    eventually("ready", || served.get("/readyz").status == 200);
    let token = sandbox.ok("token local");
    let pages = [
        ("docs/http.md", "# Over HTTP", "## Workflows", 9),
        ("docs/http-tasks.md", "## Add", "\n## Roles", 4),
    ];
    for (page, from, to, most_likely) in pages {
        let all = blocks(page, from, to);
        // Streams have no end, and some ids are placeholders.
        let wanted: Vec<_> =
            all.iter().filter(|block| !block.contains("-sSN") && !block.contains("\"id\": \"…\"")).collect();
        assert!(wanted.len() >= most_likely, "{page}: {wanted:?}");
        let script = wanted.iter().map(|block| block.as_str()).collect::<Vec<_>>().join("echo\n");
        let script = script.replace("127.0.0.1:7420", &served.address.to_string());
        let ran = paste(&sandbox, &format!("export LEASEHOLD_API_TOKEN={}\n{script}", token.trim()));
        has_no_problem(&ran);
    }
}
