//! What the file means, checked as a whole.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use leasehold::OnLocked;
use leasehold::model::{
    Brief, CronText, Input, LockName, Payload, QueueName, ScheduleName, Ttl, WorkflowName, Zone,
};
use leasehold::store::StoreUrl;
use toml::Spanned;

use super::file::{File, LimitsPart, LockedWord, RunnerWord, SchedulePart, TriggerPart, WorkflowPart};
use super::mistake::{Mistake, Text};
use crate::access::FixedToken;
use crate::server::Limits;
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
        Ok(Settings { store, listen: file.listen, limits, tokens, workflows, triggers, schedules })
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
        connections: part.connections.unwrap_or(usual.connections),
        grace: grace.unwrap_or(usual.grace),
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
