//! Destinations of log lines and spans: stderr if requested, and for a server also an OpenTelemetry
//! collector if one is configured.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{self, Write};

#[cfg(feature = "otlp")]
use leasehold_server::otlp::Exporter;
use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::cli::{Cli, Command, TasksCommand, WorkflowsCommand};
use crate::output::{Style, to_line, write_if_read, write_message};

/// Log filter: `LEASEHOLD_LOG=debug` shows what the client library does.
const LOG: &str = "LEASEHOLD_LOG";
/// Address of the collector: `LEASEHOLD_OTLP=http://127.0.0.1:4318` sends the spans of a server there.
const OTLP: &str = "LEASEHOLD_OTLP";

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

/// Writer of log lines to stderr.
struct LogWriter {
    /// Whether it keeps all lines for a slow reader of stderr; otherwise it drops lines that are not read.
    keeps_all: bool,
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.keeps_all {
            write_message(line);
        } else {
            write_if_read(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct JsonLines;

impl<S: tracing::Subscriber> Layer<S> for JsonLines {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        if let Ok(line) = to_line(&LogLine { event: "log", level, fields }) {
            write_if_read((line + "\n").as_bytes());
        }
    }
}

#[derive(Serialize)]
struct LogLine {
    event: &'static str,
    level: String,
    #[serde(flatten)]
    fields: Fields,
}

#[derive(Default, Serialize)]
struct Fields {
    message: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    fields: BTreeMap<&'static str, String>,
}

impl Fields {
    fn set(&mut self, field: &Field, text: String) {
        match field.name() {
            "message" => self.message = text,
            name => _ = self.fields.insert(name, text),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.set(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.to_owned());
    }
}

/// Starts logging as the environment requests. With `json`, log lines are JSON, except for those of
/// a server. Returns the exporter to finish when the program ends.
pub(crate) fn start(mode: LogMode, json: bool) -> Option<Exporter> {
    let json = json && mode != LogMode::Server;
    let (log, otlp) = (variable(LOG), variable(OTLP));
    // Only a server sends spans: that takes a thread, and `run` forks, which requires a single thread.
    let otlp = otlp.filter(|_| mode == LogMode::Server);
    let requested = log.is_some();
    let default = (mode != LogMode::Other).then(|| EnvFilter::new("warn"));
    let filter = log.map(|_| EnvFilter::from_env(LOG)).or(default);
    if filter.is_none() && otlp.is_none() {
        return None;
    }
    let mut layers: Vec<Box<dyn Layer<Registry> + Send + Sync>> = Vec::new();
    if let Some(filter) = filter {
        // Threads that renew leases must not wait for the reader of stderr. A server queues its log.
        let keeps_all = mode == LogMode::Server;
        let lines = tracing_subscriber::fmt::layer().with_writer(move || LogWriter { keeps_all });
        let lines = lines.with_ansi(Style::of(&io::stderr()).is_on());
        layers.push(if json {
            JsonLines.with_filter(filter).boxed()
        } else if mode == LogMode::LongCommand && !requested {
            // These lines appear among the output of a command, so they have no time, target or colours.
            lines.without_time().with_target(false).with_ansi(false).with_filter(filter).boxed()
        } else {
            lines.with_filter(filter).boxed()
        });
    }
    let exporter = otlp.map(|collector| Exporter::new(&collector)).transpose();
    if let Ok(Some(exporter)) = &exporter {
        layers.push(exporter.layer().boxed());
    }
    tracing_subscriber::registry().with(layers).init();
    exporter.unwrap_or_else(|error| {
        tracing::warn!("{OTLP}: {error}; no spans are sent");
        None
    })
}

/// Exporter of a build that cannot send spans: none can be created.
#[cfg(not(feature = "otlp"))]
pub(crate) enum Exporter {}

#[cfg(not(feature = "otlp"))]
impl Exporter {
    fn new(_: &str) -> Result<Self, &'static str> {
        Err("this build cannot send spans; build it with --features otlp")
    }

    fn layer(&self) -> tracing_subscriber::layer::Identity {
        match *self {}
    }

    pub(crate) fn finish(self) {
        match self {}
    }
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
