//! Destinations of log lines and spans: stderr if requested, and for a server also an OpenTelemetry
//! collector if one is configured.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Write;

use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::cli::{Cli, Command, TasksCommand, WorkflowsCommand};
use crate::output::{Style, to_line};

/// Log filter: `LEASEHOLD_LOG=debug` shows what the client library does.
const LOG: &str = "LEASEHOLD_LOG";
/// Address of the collector: `LEASEHOLD_OTLP=http://127.0.0.1:4318` sends the spans of a server
/// there.
const OTLP: &str = "LEASEHOLD_OTLP";

/// Resources to close when the program ends.
pub(crate) struct Telemetry {
    #[cfg(feature = "otlp")]
    exporter: Option<leasehold_server::otlp::Exporter>,
}

/// Default verbosity of a command, if no log filter is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogMode {
    /// Server: warnings, with the time. A server may also send spans.
    Server,
    /// Long-running command: warnings.
    LongCommand,
    /// Any other command: nothing.
    Other,
}

impl LogMode {
    /// Returns the default for this command.
    pub(crate) const fn of(cli: &Cli) -> Self {
        match cli.command {
            #[cfg(feature = "serve")]
            Command::Serve(_) => Self::Server,
            _ if cli.global.quiet => Self::Other,
            Command::Run(_)
            | Command::Tasks(TasksCommand::Work(_))
            | Command::Workflows(WorkflowsCommand::Run(_)) => Self::LongCommand,
            _ => Self::Other,
        }
    }
}

/// Layer that writes log lines as JSON to stderr.
struct JsonLines;

impl<S: tracing::Subscriber> Layer<S> for JsonLines {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        let Fields { message, fields } = fields;
        if let Ok(line) = to_line(&LogLine { event: "log", level, message, fields }) {
            // If stderr is closed there is no other place to report the error.
            let _ = std::io::stderr().write_all((line + "\n").as_bytes());
        }
    }
}

#[derive(Serialize)]
struct LogLine {
    event: &'static str,
    level: String,
    message: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    fields: BTreeMap<&'static str, String>,
}

/// Fields of an event as text.
#[derive(Default)]
struct Fields {
    message: String,
    fields: BTreeMap<&'static str, String>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            name => _ = self.fields.insert(name, text),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            name => _ = self.fields.insert(name, value.to_owned()),
        }
    }
}

/// Starts logging as the environment requests. With `json`, log lines are JSON, except for those of
/// a server.
pub(crate) fn start(mode: LogMode, json: bool) -> Telemetry {
    let json = json && mode != LogMode::Server;
    let (log, otlp) = (variable(LOG), variable(OTLP));
    // Only a server sends spans: that takes a thread, and `run` forks, which requires a single
    // thread.
    let otlp = otlp.filter(|_| mode == LogMode::Server);
    let requested = log.is_some();
    let default = (mode != LogMode::Other).then(|| EnvFilter::new("warn"));
    let filter = log.map(|_| EnvFilter::from_env(LOG)).or(default);
    if filter.is_none() && otlp.is_none() {
        return Telemetry::none();
    }
    let mut layers: Vec<Box<dyn Layer<Registry> + Send + Sync>> = Vec::new();
    if let Some(filter) = filter {
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let lines = lines.with_ansi(Style::of(&std::io::stderr()).is_on());
        layers.push(if json {
            JsonLines.with_filter(filter).boxed()
        } else if mode == LogMode::LongCommand && !requested {
            // These lines appear among the output of a command, so they have no time, target or
            // colours.
            lines.without_time().with_target(false).with_ansi(false).with_filter(filter).boxed()
        } else {
            lines.with_filter(filter).boxed()
        });
    }
    let (telemetry, error) = Telemetry::export(otlp, &mut layers);
    tracing_subscriber::registry().with(layers).init();
    if let Some(error) = error {
        tracing::warn!("{OTLP}: {error}; no spans are sent");
    }
    telemetry
}

#[cfg(feature = "otlp")]
impl Telemetry {
    const fn none() -> Self {
        Self { exporter: None }
    }

    fn export(
        collector: Option<String>,
        layers: &mut Vec<Box<dyn Layer<Registry> + Send + Sync>>,
    ) -> (Self, Option<String>) {
        match collector.map(|collector| leasehold_server::otlp::Exporter::new(&collector)) {
            None => (Self::none(), None),
            Some(Ok(exporter)) => {
                layers.push(exporter.layer().boxed());
                (Self { exporter: Some(exporter) }, None)
            }
            Some(Err(error)) => (Self::none(), Some(error.to_string())),
        }
    }

    /// Sends the remaining spans.
    pub(crate) fn finish(self) {
        if let Some(exporter) = self.exporter {
            exporter.finish();
        }
    }
}

#[cfg(not(feature = "otlp"))]
impl Telemetry {
    const fn none() -> Self {
        Self {}
    }

    fn export(
        collector: Option<String>,
        _: &mut Vec<Box<dyn Layer<Registry> + Send + Sync>>,
    ) -> (Self, Option<String>) {
        let error = "this build cannot send spans; build it with --features otlp";
        (Self::none(), collector.map(|_| error.to_owned()))
    }

    /// Does nothing: this build sends no spans.
    #[expect(clippy::unused_self, reason = "the same shape with the feature and without")]
    pub(crate) const fn finish(self) {}
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_running_commands_log_warnings() {
        let mode = |text: &str| {
            let words: Vec<std::ffi::OsString> = text.split(' ').map(Into::into).collect();
            LogMode::of(&crate::cli::parse(&words).unwrap())
        };
        #[cfg(feature = "serve")]
        assert_eq!(mode("leasehold serve"), LogMode::Server);
        assert_eq!(mode("leasehold run serve -- true"), LogMode::LongCommand);
        assert_eq!(mode("leasehold tasks work q -- true"), LogMode::LongCommand);
        assert_eq!(mode("leasehold tasks work -q q -- true"), LogMode::Other);
        assert_eq!(mode("leasehold locks list"), LogMode::Other);
    }
}
