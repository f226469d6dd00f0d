//! Secrets of a server: commands of workflows cannot read its environment, and clients do not learn
//! the path of its store.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::json;

use crate::support::{Sandbox, eventually, not_applicable};

use super::support::Served;

/// Secret in the environment of the server.
const SECRET: &str = "s3cr3t-of-the-server";

/// Returns how to start a program as a user other than root, because root may read everything.
fn as_other_user() -> Option<Vec<&'static str>> {
    if !nix::unistd::geteuid().is_root() {
        return Some(vec!["env"]);
    }
    let setpriv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    // The binary may be in a folder that only root can enter.
    let mut run = Command::new(setpriv[0]);
    run.args(&setpriv[1..]).args([env!("CARGO_BIN_EXE_leasehold"), "--version"]);
    run.output().is_ok_and(|ran| ran.status.success()).then(|| setpriv.to_vec())
}

#[test]
fn a_command_cannot_read_the_environment_of_the_server_in_any_containment() {
    let Some(outer) = as_other_user() else {
        let case = "a_command_cannot_read_the_environment_of_the_server_in_any_containment";
        return not_applicable(case, "the binary where another user can start it");
    };
    let mut tested = 0;
    for contain in ["none", "auto", "pidns"] {
        let sandbox = Sandbox::new();
        fs::set_permissions(sandbox.path(), fs::Permissions::from_mode(0o777)).unwrap();
        // The parents of the command are processes of leasehold, and the server is one of its
        // ancestors.
        let script = "cat /proc/$(cat server)/environ > environ; cat /proc/$(cat server)/maps > maps; \
                      tr -d '\\\\0' < /proc/$PPID/environ > parent; cat /proc/self/environ > own; echo done";
        let settings = format!("[workflows.a]\ncommand = [\"sh\", \"-c\", \"{script}\"]\n");
        fs::write(sandbox.path().join("leasehold.toml"), settings).unwrap();
        let words =
            format!("--json serve --open --listen 127.0.0.1:0 --config leasehold.toml --contain {contain}");
        let mut check = sandbox.command_in(&outer, &format!("{words} --check"));
        if !check.output().unwrap().status.success() {
            not_applicable(&format!("the hidden environment with --contain {contain}"), "it");
            continue;
        }
        let mut command = sandbox.command_in(&outer, &words);
        command.env("A_SECRET", SECRET).stdout(std::process::Stdio::piped());
        let served = Served::spawn(&mut command);
        fs::write(sandbox.path().join("server"), served.pid().to_string()).unwrap();
        eventually("ready", || served.get("/readyz").status == 200);
        let id = served.start_key("a", "k").id();
        served.until(&id, "succeeded");
        let read = |name: &str| fs::read(sandbox.path().join(name)).unwrap_or_default();
        for file in ["environ", "maps", "parent", "own"] {
            assert!(!String::from_utf8_lossy(&read(file)).contains(SECRET), "{contain}: {file}");
        }
        assert!(read("environ").is_empty() && read("maps").is_empty(), "{contain}");
        assert!(!read("own").is_empty(), "{contain}: the command runs as it would without this");
        // Control: the secret of a process that does not hide it is found.
        let mut open = Command::new("sleep");
        let mut open = open.arg("60").env("A_SECRET", SECRET).spawn().unwrap();
        let environ = format!("/proc/{}/environ", open.id());
        eventually("it shows", || String::from_utf8_lossy(&fs::read(&environ).unwrap()).contains(SECRET));
        open.kill().unwrap();
        open.wait().unwrap();
        tested += 1;
    }
    assert!(tested > 0, "no containment could be tested");
}

#[test]
fn a_damaged_store_is_reported_without_its_path() {
    let sandbox = Sandbox::new();
    let served = Served::ready(&sandbox, "");
    // The server has to read again what another process has written.
    sandbox.ok("locks acquire a --ttl 1m");
    let file = sandbox.path().join("store.db");
    let other = rusqlite::Connection::open(&file).unwrap();
    other.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    // The records of all tables are destroyed; the page with the schema stays.
    let bytes = fs::read(&file).unwrap();
    let mut damaged = fs::OpenOptions::new().write(true).open(&file).unwrap();
    std::io::Seek::seek(&mut damaged, std::io::SeekFrom::Start(4096)).unwrap();
    std::io::Write::write_all(&mut damaged, &vec![0xff; bytes.len() - 4096]).unwrap();
    let folder = sandbox.path().to_string_lossy().into_owned();
    let mut told = 0;
    for path in ["/readyz", "/api/v1/locks", "/api/v1/locks/a", "/api/v1/tasks", "/api/v1/queues"] {
        let reply = served.get(path);
        let text = reply.body.to_string();
        assert!(!text.contains(&folder) && !text.contains("store.db"), "{path}: {text}");
        if reply.status >= 500 {
            assert!(
                reply.body["detail"].as_str().is_some_and(|detail| detail.starts_with("the store ")),
                "{text}"
            );
            told += 1;
        }
    }
    let reply = served.post("/api/v1/locks/b/acquire", &json!({}));
    assert!(!reply.body.to_string().contains(&folder), "{reply:?}");
    assert!(told > 0, "nothing noticed that the store is damaged");
}
