//! What the file means, checked as a whole.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use leasehold::OnLocked;
use leasehold::model::{
    Brief, CronText, Input, LockName, Payload, QueueName, Retention, ScheduleName, Ttl, WorkflowName, Zone,
};
use leasehold::store::StoreUrl;
use toml::Spanned;

use super::file::{
    File, LimitsPart, LockedWord, RetentionPart, RunnerWord, SchedulePart, TerraformPart, TriggerPart,
    WorkflowPart,
};
use super::mistake::{Mistake, Text};
use super::values::Keeping;
use crate::access::FixedToken;
use crate::server::Limits;
use crate::terraform::TerraformOptions;
use crate::webhooks::{Scheme, Secret};
use crate::workflows::{CommandSettings, Runner, Trigger, Workflow};

/// How long a lease on a workflow lasts without a sign of life, if nobody says otherwise.
const TTL: Ttl = Ttl::from_secs(30);
/// How many may wait for a workflow, if nobody says otherwise.
const QUEUE: u32 = 100;
/// How far a signed time may be from now.
const TOLERANCE: Duration = Duration::from_mins(5);

/// The settings of a server.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The store.
    pub store: Option<StoreAddress>,
    /// Where to listen.
    pub listen: Option<SocketAddr>,
    /// What requests may cost.
    pub limits: Limits,
    /// Whether `/metrics` is for whoever asks.
    pub open_metrics: bool,
    /// How long finished tasks are kept, of these queues or, without a name, of all queues that have nothing set of their
    /// own: written to the store when the server starts.
    pub retentions: Vec<(Option<QueueName>, Retention)>,
    /// How the Terraform backend behaves.
    pub terraform: TerraformOptions,
    /// The tokens that stand in the file.
    pub tokens: Vec<FixedToken>,
    /// The workflows.
    pub workflows: Vec<Workflow>,
    /// What starts them.
    pub triggers: Vec<Trigger>,
    /// What comes again and again.
    pub schedules: Vec<ScheduleSettings>,
}

/// The address of a store, perhaps with a password in it.
#[derive(Clone)]
pub struct StoreAddress(String);

impl StoreAddress {
    /// The whole, for the store's client and not for people.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreAddress(…)")
    }
}

/// A schedule of the file.
#[derive(Debug, Clone)]
pub struct ScheduleSettings {
    /// Its name.
    pub name: ScheduleName,
    /// When.
    pub cron: CronText,
    /// In which time zone.
    pub zone: Option<Zone>,
    /// Where its tasks go.
    pub queue: QueueName,
    /// What they are about.
    pub payload: Payload,
    /// The workflow's lock, if its tasks are executions.
    pub lock: Option<LockName>,
}

impl Settings {
    /// Reads the file, and what it names: secrets in the environment and in other files.
    pub fn read(file: &Path) -> Result<Self, Mistake> {
        let text = std::fs::read_to_string(file).map_err(|error| Mistake::unreadable(file, &error))?;
        Self::parse(file, &text)
    }

    /// Reads the text of a file, which is also where paths in it begin.
    pub fn parse(file: &Path, text: &str) -> Result<Self, Mistake> {
        let text = Text { file, text };
        let parsed: File = toml::from_str(text.text).map_err(|error| text.not_parsed(&error))?;
        let folder = file.parent().unwrap_or(Path::new(""));
        Reader { text, folder }.settings(parsed)
    }
}

/// What the file says of retention. A state that is not named is kept as by default.
fn retentions(part: &RetentionPart) -> Vec<(Option<QueueName>, Retention)> {
    let RetentionPart { succeeded, failed, aborted, queues } = part;
    let read = |(succeeded, failed, aborted): Keepings, otherwise: Retention| Retention {
        succeeded: succeeded.map_or(otherwise.succeeded, |keep| keep.0),
        failed: failed.map_or(otherwise.failed, |keep| keep.0),
        aborted: aborted.map_or(otherwise.aborted, |keep| keep.0),
    };
    let default = read((*succeeded, *failed, *aborted), Retention::DEFAULT);
    let says = succeeded.or(*failed).or(*aborted).is_some();
    let queues = queues.iter().map(|(queue, part)| {
        (Some(queue.clone()), read((part.succeeded, part.failed, part.aborted), default))
    });
    says.then_some((None, default)).into_iter().chain(queues).collect()
}

/// Of tasks that succeeded, failed and were aborted.
type Keepings = (Option<Keeping>, Option<Keeping>, Option<Keeping>);

/// What is needed to understand the parts.
struct Reader<'a> {
    text: Text<'a>,
    folder: &'a Path,
}

impl Reader<'_> {
    fn settings(&self, file: File) -> Result<Settings, Mistake> {
        let mut workflows = Vec::new();
        for (name, part) in file.workflows {
            workflows.push(self.workflow(name, part)?);
        }
        let mut triggers = Vec::new();
        for (id, part) in file.triggers {
            triggers.push(self.trigger(id.0, part, &workflows)?);
        }
        let mut schedules = Vec::<ScheduleSettings>::new();
        for part in file.schedules {
            let at = part.span();
            let schedule = self.schedule(part, &workflows)?;
            if schedules.iter().any(|other| other.name == schedule.name) {
                let wrong = format!("there are two schedules with the name '{}'", schedule.name);
                return Err(self.text.mistake(Some(at), wrong));
            }
            schedules.push(schedule);
        }
        let tokens = file.tokens.into_iter();
        let tokens = tokens.map(|part| FixedToken::of(part.name.as_str(), part.role, part.hash)).collect();
        let store = file.store.map(|store| self.store(&store)).transpose()?;
        let limits = limits(&file.limits, file.grace.map(|grace| grace.0));
        Ok(Settings {
            store,
            listen: file.listen,
            limits,
            open_metrics: file.metrics.open,
            retentions: retentions(&file.retention),
            terraform: terraform(&file.terraform),
            tokens,
            workflows,
            triggers,
            schedules,
        })
    }

    /// The address is not repeated: there may be a password in it.
    fn store(&self, store: &Spanned<String>) -> Result<StoreAddress, Mistake> {
        let url = store.get_ref();
        if let Err(error) = StoreUrl::parse(url) {
            return Err(self.text.mistake(Some(store.span()), error));
        }
        let path = url.strip_prefix("sqlite:").map(|rest| rest.split('?').next().unwrap_or(rest));
        if path.is_some_and(|path| !path.is_empty() && !path.starts_with('/')) {
            let wrong = "the store has a relative path";
            let hint = "write the whole path: else each folder would have a store of its own";
            return Err(self.text.mistake_with(Some(store.span()), wrong, hint));
        }
        Ok(StoreAddress(url.clone()))
    }

    fn workflow(&self, name: WorkflowName, part: Spanned<WorkflowPart>) -> Result<Workflow, Mistake> {
        let at = part.span();
        let part = part.into_inner();
        if let Some(limit) = &part.queue_limit
            && part.on_locked != LockedWord::Queue
        {
            let wrong = "nothing waits for this workflow, as on_locked is not \"queue\"";
            return Err(self.text.mistake(Some(limit.span()), wrong));
        }
        let places = part.queue_limit.as_ref().map_or(QUEUE, |limit| *limit.get_ref());
        let external = part.runner.as_ref().is_some_and(|runner| *runner.get_ref() == RunnerWord::External);
        let runner = match (part.command, external) {
            (Some(command), true) => {
                let wrong = "a workflow with runner = \"external\" has no command: others run it";
                return Err(self.text.mistake(Some(command.span()), wrong));
            }
            (None, true) => Runner::External,
            (None, false) => {
                let wrong = format!("workflow '{name}' has no command");
                let hint = "write: command = [\"/path/to/program\", \"argument\"], or runner = \"external\"";
                return Err(self.text.mistake_with(Some(at), wrong, hint));
            }
            (Some(command), false) => {
                let words = command.get_ref();
                if words.first().is_none_or(String::is_empty) || words.iter().any(|word| word.contains('\0'))
                {
                    let wrong = "the command is a list with the program first";
                    return Err(self.text.mistake(Some(command.span()), wrong));
                }
                let directory = self.folder.join(part.directory.unwrap_or_default());
                Runner::Command(CommandSettings {
                    argv: command.into_inner(),
                    environment: part.environment.into_iter().map(|name| name.0).collect(),
                    directory,
                })
            }
        };
        Ok(Workflow {
            name,
            description: part.description,
            on_locked: on_locked(part.on_locked, places),
            places,
            reuse: part.reuse.into(),
            ttl: part.ttl.map_or(TTL, |ttl| ttl.0),
            max_runtime: part.max_runtime.map(|longest| longest.0),
            runner,
        })
    }

    fn trigger(
        &self,
        id: String,
        part: Spanned<TriggerPart>,
        workflows: &[Workflow],
    ) -> Result<Trigger, Mistake> {
        let at = part.span();
        let part = part.into_inner();
        let workflow = self.known(&part.workflow, workflows)?;
        let scheme = part.scheme;
        match (scheme, part.secrets.first()) {
            (Scheme::None, Some(secret)) => {
                let wrong = "a trigger with scheme = \"none\" checks no signature, and has no secrets";
                return Err(self.text.mistake(Some(secret.span()), wrong));
            }
            (Scheme::Github | Scheme::Stripe | Scheme::Standard, None) => {
                let wrong = format!("trigger '{id}' has no secrets, so no signature could be checked");
                let hint = "write: secrets = [\"env:NAME\"]";
                return Err(self.text.mistake_with(Some(at), wrong, hint));
            }
            _ => {}
        }
        let mut secrets = Vec::new();
        for place in &part.secrets {
            let wrong = |wrong: String| self.text.mistake(Some(place.span()), wrong);
            let secret = place.get_ref().open(self.folder).map_err(wrong)?;
            secrets.push(Secret::new(scheme, &secret).map_err(|invalid| wrong(invalid.to_string()))?);
        }
        // GitHub does not deliver again by itself what was refused: the event would be lost.
        let default = if scheme == Scheme::Github { Some(LockedWord::Queue) } else { None };
        let word = part.on_locked.or(default);
        Ok(Trigger {
            id,
            on_locked: word.map_or(workflow.on_locked, |word| on_locked(word, workflow.places)),
            workflow: workflow.name.clone(),
            scheme,
            secrets,
            key: part.key,
            tolerance: part.tolerance.map_or(TOLERANCE, |tolerance| tolerance.0),
        })
    }

    fn schedule(
        &self,
        part: Spanned<SchedulePart>,
        workflows: &[Workflow],
    ) -> Result<ScheduleSettings, Mistake> {
        let at = part.span();
        let SchedulePart { name, cron, zone, workflow, queue, input } = part.into_inner();
        let input = input.unwrap_or_default();
        let wrong = |invalid: leasehold::model::Invalid| self.text.mistake(Some(at.clone()), invalid);
        let (queue, payload, lock) = match (workflow, queue) {
            (Some(workflow), None) => {
                let workflow = self.known(&workflow, workflows)?;
                let mut brief = Brief::new(Input::of(&input).map_err(wrong)?);
                brief.max_runtime = workflow.max_runtime;
                (workflow.name.queue(), Payload::of(&brief).map_err(wrong)?, Some(workflow.name.lock()))
            }
            (None, Some(queue)) => (queue, Payload::of(&input).map_err(wrong)?, None),
            _ => {
                let wrong = format!("schedule '{name}' needs a workflow or a queue, one of them");
                return Err(self.text.mistake(Some(at), wrong));
            }
        };
        Ok(ScheduleSettings { name, cron, zone, queue, payload, lock })
    }

    fn known<'w>(
        &self,
        name: &Spanned<WorkflowName>,
        workflows: &'w [Workflow],
    ) -> Result<&'w Workflow, Mistake> {
        let found = workflows.iter().find(|workflow| workflow.name == *name.get_ref());
        found.ok_or_else(|| {
            let wrong = format!("there is no workflow '{}' in this file", name.get_ref());
            self.text.mistake_with(Some(name.span()), wrong, "write: [workflows.NAME] with a command")
        })
    }
}

fn on_locked(word: LockedWord, places: u32) -> OnLocked {
    match word {
        LockedWord::Reject => OnLocked::Reject,
        LockedWord::Queue => OnLocked::Queue(places),
        LockedWord::Skip => OnLocked::Skip,
    }
}

fn limits(part: &LimitsPart, grace: Option<Duration>) -> Limits {
    let usual = Limits::default();
    Limits {
        body_bytes: part.body_bytes.unwrap_or(usual.body_bytes),
        body_time: part.body_time.map_or(usual.body_time, |time| time.0),
        header_time: part.header_time.map_or(usual.header_time, |time| time.0),
        wait: part.wait.map_or(usual.wait, |time| time.0),
        write_time: part.write_time.map_or(usual.write_time, |time| time.0),
        connections: part.connections.unwrap_or(usual.connections),
        connections_per_address: part.connections_per_address.unwrap_or(usual.connections_per_address),
        grace: grace.unwrap_or(usual.grace),
        // Nothing means never.
        forget_locks_after: part
            .forget_locks_after
            .map_or(usual.forget_locks_after, |time| Ttl::new(time.0).ok()),
    }
}

fn terraform(part: &TerraformPart) -> TerraformOptions {
    let usual = TerraformOptions::default();
    TerraformOptions {
        ttl: part.ttl.as_ref().map_or(usual.ttl, |ttl| ttl.0),
        state_bytes: part.state_bytes.unwrap_or(usual.state_bytes),
        versions: part.versions.unwrap_or(usual.versions),
        versions_for: part.versions_for.as_ref().map_or(usual.versions_for, |time| time.0),
    }
}

/// Mistakes in the file are named with their line and key, and never with a secret.
#[cfg(test)]
mod tests {
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
        assert_eq!((settings.terraform.versions, settings.open_metrics), (50, false));
        let deploy = &settings.workflows[0];
        assert_eq!((deploy.on_locked, deploy.ttl), (OnLocked::Queue(100), Ttl::from_secs(30)));
        let push = settings.triggers.iter().find(|trigger| trigger.id == "push").unwrap();
        assert_eq!(push.on_locked, OnLocked::Queue(100));
        assert_eq!(settings.schedules[0].queue.as_str(), "workflow/deploy");
        assert_eq!(settings.schedules[0].lock, Some(deploy.name.lock()));
    }

    #[test]
    fn retention_is_for_all_queues_or_for_one() {
        assert_eq!(parse("").unwrap().retentions, []);
        let text = "[retention]\nsucceeded = \"1d\"\n[retention.queues.mail]\nfailed = \"forever\"\n";
        let day = Some(Ttl::from_secs(24 * 3600));
        let all = Retention { succeeded: day, ..Retention::DEFAULT };
        let mail = Retention { failed: None, ..all };
        let retentions = parse(text).unwrap().retentions;
        assert_eq!(retentions, [(None, all), (Some("mail".parse().unwrap()), mail)]);
        let wrong = wrong("[retention]\nfailed = \"never\"");
        assert!(wrong.contains("line 2") && wrong.contains("forever is possible too"), "{wrong}");
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
            (
                "[[tokens]]\nname = \"a\"\nrole = \"admin\"\nhash = \"x\"",
                "line 4, 'hash': a token's hash reads",
            ),
            ("[[schedules]]\nname = \"a\"\ncron = \"never\"\nqueue = \"q\"", "line 3, 'cron':"),
            (
                "[[schedules]]\nname = \"a\"\ncron = \"@daily\"\nqueue = \"q\"\nzone = \"Mars\"",
                "line 5, 'zone':",
            ),
            ("[terraform]\nttl = \"0s\"", "line 2, 'ttl':"),
            ("[metrics]\nopen = \"yes\"", "line 2, 'open':"),
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
            (
                "workflow = \"deploy\"\nscheme = \"none\"\nsecrets = [\"x\"]",
                "line 6, 'secrets': a trigger with",
            ),
            ("workflow = \"deploy\"\nscheme = \"rot13\"", "line 5, 'scheme': unknown variant"),
            (
                "workflow = \"deploy\"\nscheme = \"none\"\nkey = \"id\"",
                "line 6, 'key': 'id' is no JSON pointer",
            ),
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
        let twice =
            format!("{head}queue = \"q\"\n[[schedules]]\nname = \"a\"\ncron = \"@daily\"\nqueue = \"q\"");
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
}
