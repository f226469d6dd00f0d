//! Lifecycle of the server: start, signals, shutdown.

use std::time::Duration;

use leasehold::Leasehold;
use leasehold_server::{Limits, Listening, Server, listen_early};
use nix::sys::resource::{Resource, getrlimit};
use serde::Serialize;

use super::address::bind;
use super::opening::{Entry, Opened, Opening};
use super::plan::ServePlan;
use super::tls::warn;
use crate::exit;
use crate::output::{Failure, Printer};
use crate::work::{Executions, Signals};

/// Serves until a signal ends it. Returns the exit code.
pub(crate) fn serve(plan: ServePlan, printer: Printer) -> Result<i32, Failure> {
    hide_from_commands();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::internal)?;
    let done = runtime.block_on(until_the_end(plan, printer));
    // Do not wait for calls that still hang on an unresponsive store.
    runtime.shutdown_timeout(Duration::from_millis(100));
    done
}

/// Hides this process from the commands of workflows, which run as the same user. From here on they
/// cannot read its environment and memory (`/proc/PID/environ`, `ptrace`), which contain passwords
/// and secrets, and no core dump contains them either. Programs that this process executes, such as
/// the lease monitors of commands, are not affected.
fn hide_from_commands() {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(%error, "commands of workflows can read the environment of this process");
    }
}

/// Address of the server, as JSON.
#[derive(Serialize)]
struct Ready<'a> {
    listening: String,
    scheme: &'a str,
    store: &'a str,
}

async fn until_the_end(plan: ServePlan, printer: Printer) -> Result<i32, Failure> {
    let ServePlan { settings, tls, listen, store_url, shown_store, crew, executions } = plan;
    let mut signals = Signals::listen().map_err(Failure::internal)?;
    let mut opening = Opening {
        store_url: &store_url,
        shown_store: &shown_store,
        settings: &settings,
        listen,
        open: settings.open,
        printer,
    };
    opening.refuse_if_open_to_all().await?;
    warn(tls.as_ref(), listen);
    let listener = bind(listen).await?;
    let limits = within_open_files(settings.limits);
    let scheme = if tls.is_some() { "https" } else { "http" };
    let (listening, stage) = listen_early(limits, tls, listener).map_err(Failure::internal)?;
    let address = listening.address();
    if printer.json {
        printer.line(&Ready { listening: address.to_string(), scheme, store: &shown_store }, |_| {
            String::new()
        })?;
    }
    printer.say(format_args!("leasehold: listening on {scheme}://{address}, store {shown_store}"));
    opening.listen = address;
    let Opened { leasehold, access, entry } = tokio::select! {
        opened = opening.open() => opened?,
        _ = signals.next() => {
            listening.stop().await;
            return Ok(exit::SUCCESS);
        }
    };
    match entry {
        Entry::Open => printer.say("leasehold: open: every process on this machine may do everything, without a token"),
        Entry::Tokens => printer.say("leasehold: only requests with a token are let in"),
        Entry::LocalToken(path) => printer.say(format_args!(
            "leasehold: only requests with the token in {} are let in; leasehold commands of this user use it by \
             themselves, other programs send it: Authorization: Bearer $(leasehold token local)",
            path.display()
        )),
    }
    let mut server = Server::builder(leasehold.clone())
        .access(access)
        .limits(limits)
        .maintenance(settings.maintenance)
        .default_ttl(settings.default_ttl)
        .audit(settings.audit)
        .terraform(settings.terraform)
        .workflows(settings.workflows)
        .triggers(settings.triggers);
    if settings.open_metrics {
        server = server.metrics_for_everyone();
    }
    if settings.plain_metric_names {
        server = server.plain_metric_names();
    }
    let server = server.build();
    let executions = if executions.is_empty() {
        None
    } else {
        Some(Executions::start(&leasehold, executions, crew, printer)?)
    };
    stage.open(&server);
    let signal = signals.next().await;
    tracing::info!(signal, "ending");
    printer.say("leasehold: ending when what runs is done; once more ends it now");
    server.drain();
    let end = End { leasehold, listening, executions, grace: limits.grace };
    Ok(end.end(&mut signals).await)
}

/// Number of files reserved for other uses than connections: the store, commands, and libraries.
const OTHER_FILES: usize = 256;

/// Limits the number of connections to what the limit of open files allows: otherwise clients that
/// only connect could keep commands from being started. The limit of open files itself is not
/// raised, because commands inherit it.
fn within_open_files(limits: Limits) -> Limits {
    let Ok((files, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return limits };
    let room = usize::try_from(files).unwrap_or(usize::MAX);
    let room = room.saturating_sub(OTHER_FILES).max(room / 2);
    if room < limits.connections {
        let (wanted, hint) = (limits.connections, "raise the limit of open files (ulimit -n, LimitNOFILE=)");
        tracing::info!(
            files,
            connections = room,
            wanted,
            hint,
            "connections are bounded by the limit of open files"
        );
    }
    let connections = limits.connections.min(room);
    Limits { connections, connections_per_address: limits.connections_per_address.min(connections), ..limits }
}

/// Shutdown of a server.
struct End {
    leasehold: Leasehold,
    listening: Listening,
    executions: Option<Executions>,
    grace: Duration,
}

impl End {
    /// Waits for running work to finish, within the grace period. Returns the exit code.
    async fn end(self, signals: &mut Signals) -> i32 {
        let Self { leasehold, listening, executions, grace } = self;
        let kill = executions.as_ref().map(Executions::kill);
        let (hurry, hurried) = tokio::sync::oneshot::channel::<()>();
        let mut over = std::pin::pin!(async move {
            if let Some(executions) = executions {
                let enough = async {
                    let _ = tokio::time::timeout(grace, hurried).await;
                };
                // The server listens until then, so that callers learn that it is shutting down.
                executions.stop(enough).await;
            }
            listening.stop().await;
            leasehold.close().await;
        });
        let signal = tokio::select! {
            () = &mut over => return exit::SUCCESS,
            signal = signals.next() => signal,
        };
        drop(hurry);
        if let Some(kill) = kill {
            kill();
            tokio::select! {
                () = &mut over => {}
                () = tokio::time::sleep(LAST) => {}
                _ = signals.next() => {}
            }
        }
        exit::SIGNAL_BASE + signal
    }
}

/// Maximum time for recording killed executions in the store.
const LAST: Duration = Duration::from_secs(2);
