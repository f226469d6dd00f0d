//! The README and the tutorials, pasted from top to bottom into a shell: every `sh` block is run, in
//! order, and a `text` block right below shows lines of its output (`…` or `[..]` stands for anything).

use std::fmt::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use super::support::{Ran, Sandbox, run};

/// Text between the outputs of two blocks.
const MARK: &str = "\n@@ next block\n";

/// Addresses of servers on the pages: the default one, and that of a second server.
const ADDRESSES: [&str; 2] = ["127.0.0.1:7420", "127.0.0.1:7421"];

/// Shell block with the lines of its output that the page shows.
#[derive(Debug, PartialEq)]
struct Block {
    commands: String,
    shown: Vec<String>,
}

/// Returns the `sh` blocks of a page.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut parts = page.split("\n```");
    let mut is_below_commands = parts.next().is_none();
    while let (Some(code), after) = (parts.next(), parts.next().unwrap_or_default()) {
        let (language, lines) = code.split_once('\n').unwrap_or((code, ""));
        match (language, blocks.last_mut()) {
            ("sh", _) => blocks.push(Block { commands: format!("{lines}\n"), shown: Vec::new() }),
            ("text", Some(block)) if is_below_commands => {
                block.shown = lines.lines().map(str::to_owned).collect();
            }
            _ => {}
        }
        is_below_commands = language == "sh" && after.trim().is_empty();
    }
    blocks
}

/// Whether a block only builds: `cargo xtask dist --check` and the tests themselves cover that.
fn only_builds(block: &Block) -> bool {
    block
        .commands
        .lines()
        .all(|line| line.starts_with("cargo ") || line.starts_with("git clone") || line.starts_with("cd "))
}

/// Returns addresses with free ports, one for each address of the pages.
fn free_addresses() -> [String; ADDRESSES.len()] {
    let listeners = ADDRESSES.map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().to_string())
}

/// Returns commands with these addresses instead of those of the page. A server without `--listen` gets
/// the first one.
fn with_addresses(commands: &str, addresses: &[String; ADDRESSES.len()]) -> String {
    let mut replaced = String::new();
    let serve = format!("leasehold serve --listen {}", ADDRESSES[0]);
    for line in commands.lines() {
        let is_complete = line.contains("--listen");
        let line = if is_complete { line.to_owned() } else { line.replace("leasehold serve", &serve) };
        replaced.extend([line.as_str(), "\n"]);
    }
    let pairs = ADDRESSES.iter().zip(addresses);
    pairs.fold(replaced, |text, (shown, address)| text.replace(shown, address))
}

/// Runs the blocks of a page in one shell, with our binary on its path and free ports for its servers.
fn paste(blocks: &[Block]) -> (Sandbox, Ran) {
    let sandbox = Sandbox::new();
    let addresses = free_addresses();
    // Servers of the page end with the shell.
    let mut script =
        "trap 'CODE=$?; kill $(jobs -p) 2>&- || true; wait || true; exit $CODE' EXIT\nexec 2>&1\nset -eu\n"
            .to_owned();
    for block in blocks {
        let commands = with_addresses(&block.commands, &addresses);
        let _ = writeln!(script, "printf '{}'\n{commands}", MARK.replace('\n', "\\n"));
    }
    let plain = sandbox.command([""; 0]);
    let ours = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("timeout");
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.env("PATH", format!("{}:{path}", ours.display()));
    let ran = run(shell.args(["300", "bash", "-c", &script]).current_dir(sandbox.path()));
    (sandbox, ran)
}

/// Returns the first shown line that the output does not have, after those before it.
fn missing<'a>(block: &'a Block, output: &str) -> Option<&'a str> {
    let mut lines = output.lines();
    block.shown.iter().map(String::as_str).find(|shown| !lines.any(|line| matches(shown, line)))
}

/// Whether a line is as a page shows it.
fn matches(shown: &str, line: &str) -> bool {
    let shown = shown.replace('…', "[..]");
    let mut parts = shown.split("[..]");
    let Some(mut rest) = parts.next().and_then(|start| line.strip_prefix(start)) else { return false };
    let mut parts: Vec<_> = parts.collect();
    let Some(end) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(end)
}

fn check(page: &str, at_least: usize) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join(page)).unwrap();
    // The README builds the binary and runs it in one command.
    let text = text.replace("cargo run --release -p leasehold-cli --", "leasehold");
    let blocks: Vec<_> = blocks(&text).into_iter().filter(|block| !only_builds(block)).collect();
    assert!(blocks.len() >= at_least, "{page} has {} blocks", blocks.len());
    let (_sandbox, ran) = paste(&blocks);
    assert_eq!(ran.code, 0, "{page}: {}", ran.stdout);
    let outputs: Vec<_> = ran.stdout.split(MARK).skip(1).collect();
    assert_eq!(outputs.len(), blocks.len(), "{page}: {}", ran.stdout);
    for (block, output) in blocks.iter().zip(outputs) {
        let missing = missing(block, output);
        assert_eq!(missing, None, "{page}: not printed by\n{}\nbut\n{output}", block.commands);
    }
}

#[test]
fn the_readme_can_be_pasted() {
    check("README.md", 6);
}

#[test]
fn the_page_on_locks_can_be_pasted() {
    check("docs/locks.md", 1);
}

#[test]
fn the_tutorial_for_cron_can_be_pasted() {
    check("docs/tutorials/cron.md", 3);
}

#[test]
fn the_tutorial_for_deploys_can_be_pasted() {
    check("docs/tutorials/deploys.md", 5);
}

#[test]
fn the_tutorial_for_queues_can_be_pasted() {
    check("docs/tutorials/queue.md", 4);
}

#[test]
fn the_tutorial_for_webhooks_can_be_pasted() {
    check("docs/tutorials/webhooks.md", 4);
}

#[test]
fn the_tutorial_for_terraform_can_be_pasted() {
    check("docs/tutorials/terraform.md", 4);
}

#[test]
fn the_tutorial_for_http_can_be_pasted() {
    check("docs/tutorials/http.md", 5);
}

#[test]
fn blocks_and_their_output_are_found() {
    let page = "# A\n\n```sh\na\nb\n```\n```text\n1\n```\n\n```text\nno output\n```\n```toml\nx\n```\n\n```sh\nc\n```\nWords.\n```text\n2\n```\n";
    let block = |commands: &str, shown: &[&str]| Block {
        commands: commands.to_owned(),
        shown: shown.iter().map(|&line| line.to_owned()).collect(),
    };
    let found = blocks(page);
    assert_eq!(found, [block("a\nb\n", &["1"]), block("c\n", &[])]);
    assert_eq!(missing(&block("", &["1", "3"]), "0\n1\n2\n3\n"), None);
    assert_eq!(missing(&block("", &["3", "1"]), "1\n3\n"), Some("1"));
    for (shown, line, is_shown) in [
        ("a", "a", true),
        ("a", "ab", false),
        ("a[..]c", "abc", true),
        ("[..]b[..]", "abc", true),
        ("[..]x[..]", "abc", false),
        ("ab[..]bc", "abc", false),
        ("a…c…", "abcd", true),
        ("a…c", "abcd", false),
    ] {
        assert_eq!(matches(shown, line), is_shown, "{shown} {line}");
    }
}

#[test]
fn servers_get_free_ports() {
    let commands = "leasehold serve > log &\ncurl 127.0.0.1:7420\nleasehold serve --listen 127.0.0.1:7421\n";
    let replaced = with_addresses(commands, &["[::1]:1".to_owned(), "[::1]:2".to_owned()]);
    let expected =
        "leasehold serve --listen [::1]:1 > log &\ncurl [::1]:1\nleasehold serve --listen [::1]:2\n";
    assert_eq!(replaced, expected);
}
