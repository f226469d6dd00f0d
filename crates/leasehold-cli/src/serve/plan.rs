//! Parameters of the server, validated before any side effect.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;

use leasehold::store::StoreUrl;
use leasehold_server::config::Settings;
use leasehold_server::{CommandSettings, Runner, Tls};

use super::tls::load;
use crate::config::StoreChoice;
use crate::output::Failure;
use crate::run::{CleanCommand, Contain, Launcher, MonitorPool};
use crate::work::ExecutionPlan;

const DEFAULT_ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 7420);

/// Variables that every command inherits.
const INHERITED: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];

/// Parameters of the server.
pub(crate) struct ServePlan {
    pub(crate) settings: Settings,
    pub(crate) tls: Option<Tls>,
    pub(super) listen: SocketAddr,
    pub(super) store_url: String,
    pub(super) shown_store: String,
    pub(super) pool: Arc<MonitorPool>,
    pub(super) executions: Vec<ExecutionPlan>,
}

impl ServePlan {
    /// Checks that everything that the settings name exists. Must be called while this process has
    /// one thread.
    pub(crate) fn new(
        settings: Settings,
        listen: Option<SocketAddr>,
        store: &StoreChoice,
        contain: Contain,
    ) -> Result<Self, Failure> {
        StoreUrl::parse(&store.url)?;
        let pool = Arc::new(MonitorPool::new());
        let mut executions = Vec::new();
        for workflow in &settings.workflows {
            if let Runner::Command(command) = &workflow.runner {
                if !command.directory.is_dir() {
                    let folder = command.directory.display();
                    let message = format!("workflow '{}': there is no folder {folder}", workflow.name);
                    return Err(Failure::config(message).hint("create it, or set another directory"));
                }
                let launcher = Launcher::clean(clean_command(command, workflow.ttl, contain), pool.clone())
                    .map_err(|failure| with_workflow(failure, workflow.name.as_str()))?;
                executions.push(ExecutionPlan {
                    workflow: workflow.name.clone(),
                    ttl: workflow.ttl,
                    launcher,
                });
            }
        }
        let tls = settings.tls.clone().map(load).transpose()?;
        let listen = listen.or(settings.listen).unwrap_or_else(|| DEFAULT_ADDRESS.into());
        let (store_url, shown_store) = (store.absolute(), store.redacted());
        Ok(Self { settings, tls, listen, store_url, shown_store, pool, executions })
    }
}

fn with_workflow(failure: Failure, workflow: &str) -> Failure {
    let message = format!("workflow '{workflow}': {}", failure.message().replace("--", ""));
    failure.with_message(message)
}

/// Returns the command with the variables of this process that it may see.
fn clean_command(command: &CommandSettings, ttl: leasehold::model::Ttl, contain: Contain) -> CleanCommand {
    let requested = command.environment.iter().map(String::as_str);
    let names = INHERITED.into_iter().chain(requested.filter(|name| !INHERITED.contains(name)));
    let variables = names.filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?))).collect();
    CleanCommand {
        command: command.argv.iter().map(OsString::from).collect(),
        directory: command.directory.clone(),
        variables,
        ttl,
        contain,
    }
}
