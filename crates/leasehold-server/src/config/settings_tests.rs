//! Mistakes in the file are named with their line and key, and never with a secret.

use super::*;

const BASE: &str = "[workflows.deploy]\ncommand = [\"true\"]\n";

fn parse(text: &str) -> Result<Settings, Mistake> {
    Settings::parse(Path::new("/etc/leasehold.toml"), text)
}

fn wrong(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn the_annotated_example_can_be_used() {
    let text = include_str!("../../../../deploy/leasehold.toml");
    let settings = parse(text).unwrap_or_else(|mistake| panic!("{mistake}"));
    assert_eq!(settings.workflows.len(), 2);
    let deploy = &settings.workflows[0];
    assert_eq!((deploy.on_locked, deploy.ttl), (OnLocked::Queue(100), Ttl::from_secs(30)));
    let push = settings.triggers.iter().find(|trigger| trigger.id == "push").unwrap();
    assert_eq!(push.on_locked, OnLocked::Queue(100));
    assert_eq!(settings.schedules[0].queue.as_str(), "workflow/deploy");
    assert_eq!(settings.schedules[0].lock, Some(deploy.name.lock()));
}

#[test]
fn an_empty_file_is_a_server_without_workflows() {
    let settings = parse("").unwrap();
    assert!(settings.store.is_none() && settings.workflows.is_empty() && settings.tokens.is_empty());
}

#[test]
fn a_key_that_is_not_known_is_named_with_its_line() {
    let wrong = wrong("listen = \"127.0.0.1:1\"\n\nprot = 5\n");
    assert!(wrong.starts_with("/etc/leasehold.toml, line 3, 'prot': unknown field `prot`"), "{wrong}");
    let wrong = self::wrong(&format!("{BASE}tll = \"5s\"\n"));
    assert!(wrong.starts_with("/etc/leasehold.toml, line 3, 'tll': unknown field"), "{wrong}");
    let wrong = self::wrong("[workflow.deploy]\n");
    assert!(wrong.contains("line 1, [workflow.deploy]: unknown field `workflow`"), "{wrong}");
}

#[test]
fn values_that_cannot_be_are_named_with_their_key() {
    for (text, told) in [
        ("listen = \"nowhere\"", "line 1, 'listen':"),
        ("grace = 5", "line 1, 'grace':"),
        ("grace = \"soon\"", "line 1, 'grace':"),
        ("[limits]\nwait = \"-1s\"", "line 2, 'wait':"),
        (
            "[[tokens]]\nname = \"a\"\nrole = \"king\"\nhash = \"sha256:47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU\"",
            "line 3, 'role': unknown variant `king`",
        ),
        ("[[tokens]]\nname = \"a\"\nrole = \"admin\"\nhash = \"x\"", "line 4, 'hash': a token's hash reads"),
        ("[[schedules]]\nname = \"a\"\ncron = \"never\"\nqueue = \"q\"", "line 3, 'cron':"),
        ("[[schedules]]\nname = \"a\"\ncron = \"@daily\"\nqueue = \"q\"\nzone = \"Mars\"", "line 5, 'zone':"),
        ("store = \"mysql://h\"", "line 1, 'store': 'mysql:' is not a store"),
        ("store = \"sqlite:here.db\"", "line 1, 'store': the store has a relative path"),
        ("nonsense", "line 1"),
    ] {
        assert!(wrong(text).contains(told), "{text}: {}", wrong(text));
    }
}

#[test]
fn a_workflow_has_a_command_or_is_run_by_others() {
    for (text, told) in [
        ("[workflows.a]\n", "line 1, [workflows.a]: workflow 'a' has no command"),
        ("[workflows.a]\ncommand = []", "line 2, 'command': the command is a list"),
        ("[workflows.a]\ncommand = \"true\"", "line 2, 'command': invalid type"),
        (
            "[workflows.a]\nrunner = \"external\"\ncommand = [\"true\"]",
            "line 3, 'command': a workflow with runner",
        ),
        ("[workflows.a]\nrunner = \"magic\"", "line 2, 'runner': unknown variant"),
        ("[workflows.a]\ncommand = [\"x\"]\nqueue_limit = 5", "line 3, 'queue_limit': nothing waits"),
        ("[workflows.a]\ncommand = [\"x\"]\nttl = \"0s\"", "line 3, 'ttl':"),
        ("[workflows.a]\ncommand = [\"x\"]\nenvironment = [\"A=b\"]", "line 3, 'environment':"),
        ("[workflows.a]\ncommand = [\"x\"]\nreuse = \"sometimes\"", "line 3, 'reuse':"),
    ] {
        assert!(wrong(text).contains(told), "{text}: {}", wrong(text));
    }
}

#[test]
fn a_trigger_starts_a_workflow_of_the_file_and_has_what_its_scheme_needs() {
    let with = |rest: &str| wrong(&format!("{BASE}[triggers.push]\n{rest}"));
    for (rest, told) in [
        ("workflow = \"other\"\nscheme = \"none\"", "line 4, 'workflow': there is no workflow 'other'"),
        (
            "workflow = \"deploy\"\nscheme = \"github\"",
            "line 3, [triggers.push]: trigger 'push' has no secrets",
        ),
        ("workflow = \"deploy\"\nscheme = \"none\"\nsecrets = [\"x\"]", "line 6, 'secrets': a trigger with"),
        ("workflow = \"deploy\"\nscheme = \"rot13\"", "line 5, 'scheme': unknown variant"),
        ("workflow = \"deploy\"\nscheme = \"none\"\nkey = \"id\"", "line 6, 'key': 'id' is no JSON pointer"),
        (
            "workflow = \"deploy\"\nscheme = \"github\"\nsecrets = [\"env:LEASEHOLD_NO_SUCH\"]",
            "line 6, 'secrets': the variable LEASEHOLD_NO_SUCH is not set",
        ),
        (
            "workflow = \"deploy\"\nscheme = \"github\"\nsecrets = [\"file:no-such-secret\"]",
            "line 6, 'secrets': the file /etc/no-such-secret cannot be read",
        ),
        (
            "workflow = \"deploy\"\nscheme = \"standard\"\nsecrets = [\"whsec_?\"]",
            "line 6, 'secrets': a secret of Standard Webhooks",
        ),
    ] {
        assert!(with(rest).contains(told), "{rest}: {}", with(rest));
    }
    assert!(
        wrong(&format!("{BASE}[triggers.\"a b\"]\nworkflow = \"deploy\"\nscheme = \"none\""))
            .contains("address")
    );
}

#[test]
fn a_schedule_has_one_target() {
    let head = format!("{BASE}[[schedules]]\nname = \"a\"\ncron = \"@daily\"\n");
    assert!(wrong(&head).contains("schedule 'a' needs a workflow or a queue"));
    let both = format!("{head}workflow = \"deploy\"\nqueue = \"q\"");
    assert!(wrong(&both).contains("schedule 'a' needs a workflow or a queue"));
    let twice = format!("{head}queue = \"q\"\n[[schedules]]\nname = \"a\"\ncron = \"@daily\"\nqueue = \"q\"");
    assert!(wrong(&twice).contains("two schedules with the name 'a'"), "{}", wrong(&twice));
}

#[test]
fn no_mistake_repeats_a_secret() {
    let trigger = format!("{BASE}[triggers.push]\nworkflow = \"deploy\"\nscheme = \"github\"\n");
    for text in [
        format!("{trigger}secrets = \"s3cr3t\""),
        format!("{trigger}secrets = [\"s3cr3t\", 5]"),
        "store = [\"postgres://ada:s3cr3t@h/db\"]".to_owned(),
        "store = \"postgres://ada:s3cr3t@h/db\"\nnonsense = 5".to_owned(),
    ] {
        assert!(!wrong(&text).contains("s3cr3t"), "{}", wrong(&text));
    }
    let settings = parse(&format!("{trigger}secrets = [\"s3cr3t\"]")).unwrap();
    assert!(!format!("{settings:?}").contains("s3cr3t"));
}

#[test]
fn secrets_are_found_beside_the_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("secret"), "quiet\n").unwrap();
    let text = format!(
        "{BASE}[triggers.push]\nworkflow = \"deploy\"\nscheme = \"github\"\nsecrets = [\"file:secret\"]"
    );
    let file = folder.path().join("leasehold.toml");
    std::fs::write(&file, text).unwrap();
    let settings = Settings::read(&file).unwrap();
    assert_eq!(settings.triggers[0].secrets, [Secret::new(Scheme::Github, "quiet").unwrap()]);
    let gone = Settings::read(&folder.path().join("other.toml")).unwrap_err();
    assert!(gone.to_string().contains("other.toml cannot be read"), "{gone}");
}
