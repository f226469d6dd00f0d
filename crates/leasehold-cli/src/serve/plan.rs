//! Parameters of the server, validated before any side effect.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;

use leasehold::store::StoreUrl;
use leasehold_server::config::Settings;
use leasehold_server::{CommandSettings, Runner, Tls};

use super::tls::load;
use crate::config::Choice;
use crate::output::Failure;
use crate::run::{CleanCommand, Contain, Crew, Launcher};
use crate::work::ExecutionPlan;

const DEFAULT_ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 7420);

/// Variables that every command inherits.
const USUAL: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];

/// Parameters of the server.
pub(crate) struct ServePlan {
    pub(crate) settings: Settings,
    pub(crate) tls: Option<Tls>,
    pub(super) listen: SocketAddr,
    pub(super) store_url: String,
    pub(super) shown_store: String,
    pub(super) crew: Arc<Crew>,
    pub(super) executions: Vec<ExecutionPlan>,
}

impl ServePlan {
    /// Checks that everything that the settings name exists. Must be called while this process has
    /// one thread.
    pub(crate) fn new(
        settings: Settings,
        listen: Option<SocketAddr>,
        store: &Choice,
        contain: Contain,
    ) -> Result<Self, Failure> {
        StoreUrl::parse(&store.url)?;
        let crew = Arc::new(Crew::gather());
        let mut executions = Vec::new();
        for workflow in &settings.workflows {
            if let Runner::Command(command) = &workflow.runner {
                if !command.directory.is_dir() {
                    let folder = command.directory.display();
                    let wrong = format!("workflow '{}': there is no folder {folder}", workflow.name);
                    return Err(Failure::config(wrong).hint("make it, or write another directory"));
                }
                let launcher = Launcher::clean(clean(command, workflow.ttl, contain), crew.clone())
                    .map_err(|failure| named(failure, workflow.name.as_str()))?;
                executions.push(ExecutionPlan {
                    workflow: workflow.name.clone(),
                    ttl: workflow.ttl,
                    launcher,
                });
            }
        }
        let tls = settings.tls.clone().map(load).transpose()?;
        let listen = listen.or(settings.listen).unwrap_or_else(|| DEFAULT_ADDRESS.into());
        let (store_url, shown_store) = (store.absolute(), store.shown());
        Ok(Self { settings, tls, listen, store_url, shown_store, crew, executions })
    }
}

fn named(failure: Failure, workflow: &str) -> Failure {
    let words = format!("workflow '{workflow}': {}", failure.message().replace("--", ""));
    failure.in_words(words)
}

/// Returns the command with the variables of this process that it may see.
fn clean(command: &CommandSettings, ttl: leasehold::model::Ttl, contain: Contain) -> CleanCommand {
    let asked = command.environment.iter().map(String::as_str);
    let names = USUAL.into_iter().chain(asked.filter(|name| !USUAL.contains(name)));
    let variables = names.filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?))).collect();
    CleanCommand {
        command: command.argv.iter().map(OsString::from).collect(),
        directory: command.directory.clone(),
        variables,
        ttl,
        contain,
    }
}
