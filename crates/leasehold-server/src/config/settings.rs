//! Settings of a server, validated as a whole.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::model::{
    CronExpression, ExecutionInput, ExecutionSpec, LockName, Payload, QueueName, Retention, ScheduleName,
    TimeZoneName, Ttl, WorkflowName,
};
use leasehold::store::StoreUrl;
use toml::Spanned;

use super::file::{
    ConfigError, File, LimitsPart, MaintenancePart, RetentionPart, RetentionSetting, RunnerSetting,
    SchedulePart, TerraformPart, Text, TlsPart, TokenPart, WorkflowPart,
};
use crate::access::FixedToken;
use crate::server::{Audit, Limits, Maintenance, TerraformOptions};
use crate::transport::tls::TlsFiles;
use crate::workflows::{
    CommandSettings, DEFAULT_QUEUE_LIMIT, DEFAULT_TTL, OnLockedAction, Runner, Trigger, Workflow,
};

/// Settings of a server.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Settings {
    /// Address of the store.
    pub store: Option<StoreAddress>,
    /// Address to listen on.
    pub listen: Option<SocketAddr>,
    /// Whether every process on this machine is accepted without a token, as long as no token exists.
    pub open: bool,
    /// TLS files; `None` for plain HTTP. Relative paths start at the folder of the settings file.
    pub tls: Option<TlsFiles>,
    /// Limits of requests and connections.
    pub limits: Limits,
    /// Intervals of the background maintenance.
    pub maintenance: Maintenance,
    /// TTL of leases for requests without a TTL; `None` for the default of the store.
    pub default_ttl: Option<Ttl>,
    /// Optional events that are recorded in the history of locks.
    pub audit: Audit,
    /// Whether the server serves only the API, without the dashboard.
    pub no_dashboard: bool,
    /// Whether `/metrics` needs no token.
    pub open_metrics: bool,
    /// Whether `/metrics` also has the unprefixed names, such as `lock_conflicts_total`.
    pub plain_metric_names: bool,
    /// Retention of finished tasks, per queue. An entry without a queue name applies to all queues
    /// without a setting of their own. Written to the store when the server starts.
    pub retentions: Vec<(Option<QueueName>, Retention)>,
    /// Options of the Terraform backend.
    pub terraform: TerraformOptions,
    /// Tokens in the settings file.
    pub tokens: Vec<FixedToken>,
    /// Workflows that callers can start.
    pub workflows: Vec<Workflow>,
    /// Webhook triggers that start workflows.
    pub triggers: Vec<Trigger>,
    /// Schedules that enqueue tasks or executions.
    pub schedules: Vec<ScheduleSettings>,
}

/// Address of a store; may contain a password.
#[derive(Clone)]
pub struct StoreAddress(String);

impl StoreAddress {
    /// Returns the full address, for the store's client; must not be displayed.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreAddress(…)")
    }
}

/// Schedule in the settings file.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ScheduleSettings {
    /// Name of the schedule.
    pub name: ScheduleName,
    /// Cron expression.
    pub cron: CronExpression,
    /// Time zone of the cron expression.
    pub zone: Option<TimeZoneName>,
    /// Queue that receives the tasks.
    pub queue: QueueName,
    /// Payload of the tasks.
    pub payload: Payload,
    /// Lock of the workflow, if the tasks are executions.
    pub lock: Option<LockName>,
    /// Maximum random delay of a task after its tick.
    pub jitter: Option<Ttl>,
}

impl Settings {
    /// Reads the file and the secrets that it references in the environment and in other files.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|error| ConfigError::unreadable(file, &error))?;
        Self::parse(file, &text)
    }

    /// Parses the text of a file. Relative paths in the text start at the folder of `file`.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let text = Text { file, text };
        let parsed: File = toml::from_str(text.text).map_err(|error| text.parse_error(&error))?;
        let folder = file.parent().unwrap_or(Path::new(""));
        let ttl = parsed.defaults.ttl.map_or(DEFAULT_TTL, |ttl| ttl.0);
        Reader { text, folder, ttl }.settings(parsed)
    }
}

/// Returns the retention settings. A state that the file does not name keeps its default.
fn retentions(part: &RetentionPart) -> Vec<(Option<QueueName>, Retention)> {
    let RetentionPart { succeeded, failed, aborted, queues } = part;
    let read = |(succeeded, failed, aborted): RetentionSettings, defaults: Retention| Retention {
        succeeded: succeeded.map_or(defaults.succeeded, |keep| keep.0),
        failed: failed.map_or(defaults.failed, |keep| keep.0),
        aborted: aborted.map_or(defaults.aborted, |keep| keep.0),
    };
    let default = read((*succeeded, *failed, *aborted), Retention::DEFAULT);
    let is_set = succeeded.or(*failed).or(*aborted).is_some();
    let queues = queues.iter().map(|(queue, part)| {
        (Some(queue.clone()), read((part.succeeded, part.failed, part.aborted), default))
    });
    is_set.then_some((None, default)).into_iter().chain(queues).collect()
}

type RetentionSettings = (Option<RetentionSetting>, Option<RetentionSetting>, Option<RetentionSetting>);

pub(super) struct Reader<'a> {
    pub(super) text: Text<'a>,
    pub(super) folder: &'a Path,
    /// TTL of a lease on a workflow without a TTL of its own.
    ttl: Ttl,
}

impl Reader<'_> {
    fn settings(&self, file: File) -> Result<Settings, ConfigError> {
        let workflows = file.workflows.into_iter().map(|(name, part)| self.workflow(name, part));
        let workflows = workflows.collect::<Result<Vec<_>, _>>()?;
        let triggers = file.triggers.into_iter().map(|(id, part)| self.trigger(id.0, part, &workflows));
        let triggers = triggers.collect::<Result<_, _>>()?;
        let mut schedules = Vec::<ScheduleSettings>::new();
        for part in file.schedules {
            let at = part.span();
            let schedule = self.schedule(part, &workflows)?;
            if schedules.iter().any(|other| other.name == schedule.name) {
                let message = format!("two schedules have the name '{}'", schedule.name);
                return Err(self.text.error(Some(at), message));
            }
            schedules.push(schedule);
        }
        let token =
            |TokenPart { name, role, hash, scopes }| FixedToken { name: name.into(), role, hash, scopes };
        let tokens = file.tokens.into_iter().map(token).collect();
        Ok(Settings {
            store: file.store.map(|store| self.store(&store)).transpose()?,
            listen: file.listen,
            open: file.open,
            tls: file.tls.map(|part| self.tls(&part)),
            limits: limits(&file.limits, file.grace.map(|grace| grace.0)),
            maintenance: maintenance(&file.maintenance),
            default_ttl: file.defaults.ttl.map(|ttl| ttl.0),
            audit: Audit { renewals: file.audit.renewals },
            no_dashboard: file.dashboard.enabled == Some(false),
            open_metrics: file.metrics.open,
            plain_metric_names: file.metrics.plain_names,
            retentions: retentions(&file.retention),
            terraform: terraform(&file.terraform),
            tokens,
            workflows,
            triggers,
            schedules,
        })
    }

    /// Returns the paths only; the server reads the files when it starts.
    fn tls(&self, part: &TlsPart) -> TlsFiles {
        let at = |path: &PathBuf| self.folder.join(path);
        TlsFiles { cert: at(&part.cert), key: at(&part.key), client_ca: part.client_ca.as_ref().map(at) }
    }

    /// Validates the address. Errors do not contain the address, because it may contain a password.
    fn store(&self, store: &Spanned<String>) -> Result<StoreAddress, ConfigError> {
        let url = store.get_ref();
        if let Err(error) = StoreUrl::parse(url) {
            return Err(self.text.error(Some(store.span()), error));
        }
        let path = url.strip_prefix("sqlite:").map(|rest| rest.split('?').next().unwrap_or(rest));
        if path.is_some_and(|path| !path.is_empty() && !path.starts_with('/')) {
            let message = "the store has a relative path";
            let hint = "write an absolute path; a relative path would depend on the working directory";
            return Err(self.text.error_with_hint(Some(store.span()), message, hint));
        }
        Ok(StoreAddress(url.clone()))
    }

    fn workflow(&self, name: WorkflowName, part: Spanned<WorkflowPart>) -> Result<Workflow, ConfigError> {
        let at = part.span();
        let part = part.into_inner();
        if let Some(limit) = &part.queue_limit
            && part.on_locked != OnLockedAction::Queue
        {
            let message = "queue_limit requires on_locked = \"queue\"";
            return Err(self.text.error(Some(limit.span()), message));
        }
        let queue_limit = part.queue_limit.as_ref().map_or(DEFAULT_QUEUE_LIMIT, |limit| *limit.get_ref());
        let external =
            part.runner.as_ref().is_some_and(|runner| *runner.get_ref() == RunnerSetting::External);
        let runner = match (part.command, external) {
            (Some(command), true) => {
                let message = "a workflow with runner = \"external\" must not have a command";
                return Err(self.text.error(Some(command.span()), message));
            }
            (None, true) => Runner::External,
            (None, false) => {
                let message = format!("workflow '{name}' has no command");
                let hint = "write: command = [\"/path/to/program\", \"argument\"], or runner = \"external\"";
                return Err(self.text.error_with_hint(Some(at), message, hint));
            }
            (Some(command), false) => {
                let argv = command.get_ref();
                if argv.first().is_none_or(String::is_empty)
                    || argv.iter().any(|argument| argument.contains('\0'))
                {
                    let message = "the command must be a list that starts with the program";
                    return Err(self.text.error(Some(command.span()), message));
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
            on_locked: part.on_locked.resolve(queue_limit),
            queue_limit,
            reuse: part.reuse.into(),
            ttl: part.ttl.map_or(self.ttl, |ttl| ttl.0),
            max_runtime: part.max_runtime.map(|limit| limit.0),
            runner,
        })
    }

    fn schedule(
        &self,
        part: Spanned<SchedulePart>,
        workflows: &[Workflow],
    ) -> Result<ScheduleSettings, ConfigError> {
        let at = part.span();
        let SchedulePart { name, cron, zone, workflow, queue, jitter, input } = part.into_inner();
        let input = input.unwrap_or_default();
        let error = |invalid: leasehold::model::ValidationError| self.text.error(Some(at.clone()), invalid);
        let (queue, payload, lock) = match (workflow, queue) {
            (Some(workflow), None) => {
                let workflow = self.find_workflow(&workflow, workflows)?;
                let mut spec = ExecutionSpec::new(ExecutionInput::of(&input).map_err(error)?);
                spec.max_runtime = workflow.max_runtime;
                spec.metadata.set(ExecutionSpec::STARTED_BY, format!("schedule {name}")).map_err(error)?;
                (workflow.name.queue(), Payload::of(&spec).map_err(error)?, Some(workflow.name.lock()))
            }
            (None, Some(queue)) => (queue, Payload::of(&input).map_err(error)?, None),
            _ => {
                let message = format!("schedule '{name}' requires either a workflow or a queue");
                return Err(self.text.error(Some(at), message));
            }
        };
        Ok(ScheduleSettings { name, cron, zone, queue, payload, lock, jitter: jitter.map(|jitter| jitter.0) })
    }

    pub(super) fn find_workflow<'w>(
        &self,
        name: &Spanned<WorkflowName>,
        workflows: &'w [Workflow],
    ) -> Result<&'w Workflow, ConfigError> {
        let found = workflows.iter().find(|workflow| workflow.name == *name.get_ref());
        found.ok_or_else(|| {
            let message = format!("there is no workflow '{}' in this file", name.get_ref());
            self.text.error_with_hint(Some(name.span()), message, "write: [workflows.NAME] with a command")
        })
    }
}

fn maintenance(part: &MaintenancePart) -> Maintenance {
    let default = Maintenance::default();
    Maintenance {
        recover_every: part.recover_every.map_or(default.recover_every, |every| every.0),
        sweep_every: part.sweep_every.map_or(default.sweep_every, |every| every.0),
    }
}

fn limits(part: &LimitsPart, grace: Option<Duration>) -> Limits {
    let default = Limits::default();
    Limits {
        body_bytes: part.body_bytes.unwrap_or(default.body_bytes),
        body_time: part.body_time.map_or(default.body_time, |time| time.0),
        header_time: part.header_time.map_or(default.header_time, |time| time.0),
        idle_time: part.idle_time.map_or(default.idle_time, |time| time.0),
        wait: part.wait.map_or(default.wait, |time| time.0),
        write_time: part.write_time.map_or(default.write_time, |time| time.0),
        connections: part.connections.unwrap_or(default.connections),
        connections_per_address: part.connections_per_address.unwrap_or(default.connections_per_address),
        requests_per_token: part.requests_per_token.unwrap_or(default.requests_per_token),
        grace: grace.unwrap_or(default.grace),
        // Zero means never.
        forget_locks_after: part
            .forget_locks_after
            .map_or(default.forget_locks_after, |time| Ttl::new(time.0).ok()),
    }
}

fn terraform(part: &TerraformPart) -> TerraformOptions {
    let default = TerraformOptions::default();
    TerraformOptions {
        ttl: part.ttl.as_ref().map_or(default.ttl, |ttl| ttl.0),
        state_bytes: part.state_bytes.unwrap_or(default.state_bytes),
        versions: part.versions.unwrap_or(default.versions),
        versions_for: part.versions_for.as_ref().map_or(default.versions_for, |time| time.0),
    }
}

/// Errors in the file name the line and the key, and never contain a secret.
#[cfg(test)]
pub(super) mod tests {
    use leasehold::OnLocked;

    use super::*;

    pub(in crate::config) const BASE: &str = "[workflows.deploy]\ncommand = [\"true\"]\n";

    pub(in crate::config) fn parse(text: &str) -> Result<Settings, ConfigError> {
        Settings::parse(Path::new("/etc/leasehold.toml"), text)
    }

    pub(in crate::config) fn wrong(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn the_annotated_example_can_be_used() {
        let text = include_str!("../../../../deploy/leasehold.toml");
        let settings = parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(settings.workflows.len(), 2);
        assert_eq!((settings.terraform.versions, settings.open_metrics), (50, false));
        assert!(!settings.no_dashboard);
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
    fn files_of_tls_are_beside_the_settings_and_need_each_other() {
        let tls =
            parse("[tls]\ncert = \"a.pem\"\nkey = \"/b.pem\"\nclient_ca = \"c.pem\"").unwrap().tls.unwrap();
        assert_eq!((tls.cert.as_path(), tls.key.as_path()), (Path::new("/etc/a.pem"), Path::new("/b.pem")));
        assert_eq!(tls.client_ca.as_deref(), Some(Path::new("/etc/c.pem")));
        let wrong = wrong("[tls]\ncert = \"a.pem\"");
        assert!(wrong.contains("line 1, [tls]: missing field `key`"), "{wrong}");
    }

    #[test]
    fn intervals_and_the_default_ttl_can_be_set_within_bounds() {
        let default = parse("").unwrap();
        assert_eq!((default.maintenance.recover_every, default.default_ttl), (Duration::from_secs(2), None));
        let set = "[maintenance]\nrecover_every = \"30m\"\nsweep_every = \"10s\"\n[defaults]\nttl = \"30m\"\n\
                   [workflows.w]\nrunner = \"external\"\n[workflows.v]\nrunner = \"external\"\nttl = \"5s\"";
        let settings = parse(set).unwrap();
        assert_eq!(settings.maintenance.recover_every, Duration::from_mins(30));
        assert_eq!(settings.maintenance.sweep_every, Duration::from_secs(10));
        assert_eq!(settings.default_ttl, Some(Ttl::from_secs(1800)));
        let ttls: Vec<_> = settings.workflows.iter().map(|workflow| workflow.ttl).collect();
        assert_eq!(ttls, [Ttl::from_secs(5), Ttl::from_secs(1800)]);
        for bad in ["recover_every = \"0s\"", "sweep_every = \"9ms\"", "recover_every = \"25h\""] {
            let wrong = wrong(&format!("[maintenance]\n{bad}"));
            assert!(wrong.contains("line 2") && wrong.contains("10ms to 1d"), "{wrong}");
        }
    }

    #[test]
    fn an_empty_file_is_a_server_without_workflows() {
        let settings = parse("").unwrap();
        assert!(settings.store.is_none() && settings.workflows.is_empty() && settings.tokens.is_empty());
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let wrong = wrong("listen = \"127.0.0.1:1\"\n\nprot = 5\n");
        assert!(wrong.starts_with("/etc/leasehold.toml, line 3, 'prot': unknown field `prot`"), "{wrong}");
        let wrong = self::wrong(&format!("{BASE}tll = \"5s\"\n"));
        assert!(wrong.starts_with("/etc/leasehold.toml, line 3, 'tll': unknown field"), "{wrong}");
        let wrong = self::wrong("[workflow.deploy]\n");
        assert!(wrong.contains("line 1, [workflow.deploy]: unknown field `workflow`"), "{wrong}");
    }

    #[test]
    fn invalid_values_are_named_with_their_key() {
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
                "line 4, 'hash': invalid token hash",
            ),
            (
                "[[tokens]]\nname = \"ada via ci\"\nrole = \"admin\"\nhash = \"sha256:47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU\"",
                "line 2, 'name': invalid token name 'ada via ci'",
            ),
            ("[[schedules]]\nname = \"a\"\ncron = \"never\"\nqueue = \"q\"", "line 3, 'cron':"),
            (
                "[[schedules]]\nname = \"a\"\ncron = \"@daily\"\nqueue = \"q\"\nzone = \"Mars\"",
                "line 5, 'zone':",
            ),
            ("[terraform]\nttl = \"0s\"", "line 2, 'ttl':"),
            ("[metrics]\nopen = \"yes\"", "line 2, 'open':"),
            ("[metrics]\nplain_names = 1", "line 2, 'plain_names':"),
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
            ("[workflows.a]\ncommand = []", "line 2, 'command': the command must be a list"),
            ("[workflows.a]\ncommand = \"true\"", "line 2, 'command': invalid type"),
            (
                "[workflows.a]\nrunner = \"external\"\ncommand = [\"true\"]",
                "line 3, 'command': a workflow with runner",
            ),
            ("[workflows.a]\nrunner = \"magic\"", "line 2, 'runner': unknown variant"),
            (
                "[workflows.a]\ncommand = [\"x\"]\nqueue_limit = 5",
                "line 3, 'queue_limit': queue_limit requires",
            ),
            ("[workflows.a]\ncommand = [\"x\"]\nttl = \"0s\"", "line 3, 'ttl':"),
            ("[workflows.a]\ncommand = [\"x\"]\nenvironment = [\"A=b\"]", "line 3, 'environment':"),
            ("[workflows.a]\ncommand = [\"x\"]\nreuse = \"sometimes\"", "line 3, 'reuse':"),
        ] {
            assert!(wrong(text).contains(told), "{text}: {}", wrong(text));
        }
    }

    #[test]
    fn a_schedule_has_one_target() {
        let head = format!("{BASE}[[schedules]]\nname = \"a\"\ncron = \"@daily\"\n");
        assert!(wrong(&head).contains("schedule 'a' requires either a workflow or a queue"));
        let both = format!("{head}workflow = \"deploy\"\nqueue = \"q\"");
        assert!(wrong(&both).contains("schedule 'a' requires either a workflow or a queue"));
        let twice =
            format!("{head}queue = \"q\"\n[[schedules]]\nname = \"a\"\ncron = \"@daily\"\nqueue = \"q\"");
        assert!(wrong(&twice).contains("two schedules have the name 'a'"), "{}", wrong(&twice));
    }

    #[test]
    fn no_error_contains_a_secret() {
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
}
