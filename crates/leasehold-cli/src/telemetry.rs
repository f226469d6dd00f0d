//! Where log lines and spans go: to stderr if asked, and those of a server also to an OpenTelemetry collector if one is named.

use std::ffi::OsString;

use clap::CommandFactory;
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::cli::Cli;

/// `LEASEHOLD_LOG=debug` shows what the library does.
const LOG: &str = "LEASEHOLD_LOG";
/// `LEASEHOLD_OTLP=http://127.0.0.1:4318` sends the spans of a server there.
const OTLP: &str = "LEASEHOLD_OTLP";

/// What has to be ended when the program ends.
pub(crate) struct Telemetry {
    #[cfg(feature = "otlp")]
    exporter: Option<leasehold_server::otlp::Exporter>,
}

/// Begins, as the environment asks.
pub(crate) fn start(arguments: &[OsString]) -> Telemetry {
    let (log, otlp) = (wanted(LOG), wanted(OTLP));
    // Only a server sends spans: that takes a thread, and `run` forks, which threads do not survive.
    let serves = subcommand(arguments).is_some_and(|name| name == "serve");
    let otlp = otlp.filter(|_| serves);
    // A server that was not asked tells what it warns of.
    let filter = log.map(|_| EnvFilter::from_env(LOG)).or_else(|| serves.then(|| EnvFilter::new("warn")));
    if filter.is_none() && otlp.is_none() {
        return Telemetry::none();
    }
    let mut layers: Vec<Box<dyn Layer<Registry> + Send + Sync>> = Vec::new();
    if let Some(filter) = filter {
        layers
            .push(tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_filter(filter).boxed());
    }
    let (telemetry, complaint) = Telemetry::export(otlp, &mut layers);
    tracing_subscriber::registry().with(layers).init();
    if let Some(complaint) = complaint {
        tracing::warn!("{OTLP}: {complaint}; no spans are sent");
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

    /// Sends what is left.
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
        let complaint = "this build cannot send spans; build it with --features otlp";
        (Self::none(), collector.map(|_| complaint.to_owned()))
    }

    /// There is nothing left.
    #[expect(clippy::unused_self, reason = "the same shape with the feature and without")]
    pub(crate) const fn finish(self) {}
}

fn wanted(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The command that the arguments name, as the command line reads them: a lock may have the name of a command.
fn subcommand(arguments: &[OsString]) -> Option<String> {
    if !arguments.iter().any(|argument| argument == "serve") {
        return None;
    }
    let matches = Cli::command().try_get_matches_from(arguments).ok()?;
    matches.subcommand_name().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_called_serve_is_no_server() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(subcommand(&words("leasehold run serve -- true")).as_deref(), Some("run"));
        assert_eq!(subcommand(&words("leasehold locks list")), None);
    }
}
