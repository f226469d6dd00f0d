//! Lifecycle of the server: listening address, start, signals, shutdown.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use leasehold::Leasehold;
use leasehold_server::config::Settings;
use leasehold_server::{Limits, Listening, Server, listen_early};
use nix::sys::resource::{Resource, getrlimit};
use serde_json::json;
use tokio::net::TcpListener;

use super::startup::{Opened, ServePlan, Startup, warn};
use crate::exit;
use crate::output::{Failure, Printer, finish_messages, queue_messages};
use crate::work::{Executions, StopSignals};

/// Serves until a signal ends it. Returns the exit code.
pub(crate) fn serve(plan: ServePlan, printer: Printer) -> Result<i32, Failure> {
    // No other thread waits for the reader of stderr: one of them renews all leases.
    queue_messages();
    hide_from_commands();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::internal)?;
    let result = runtime.block_on(run(plan, printer));
    runtime.block_on(finish_messages());
    // Do not wait for calls that still hang on an unresponsive store.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

/// Hides this process from the commands of workflows, which run as the same user. From here on they
/// cannot read its environment and memory (`/proc/PID/environ`, `ptrace`), which contain passwords
/// and secrets, and no core dump contains them either. Programs that this process executes, such as
/// the lease monitors of commands, are not affected.
fn hide_from_commands() {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(%error, "the commands of workflows can read the environment of this process");
    }
}

async fn run(plan: ServePlan, printer: Printer) -> Result<i32, Failure> {
    let ServePlan { settings, tls, listen, store_url, shown_store, pool, executions } = plan;
    let mut signals = StopSignals::listen().map_err(Failure::internal)?;
    let mut startup =
        Startup { store_url: &store_url, shown_store: &shown_store, settings: &settings, listen, printer };
    startup.check_exposed_address().await?;
    warn(tls.as_ref(), listen);
    let listener = bind(listen).await?;
    let limits = within_open_files(settings.limits);
    let scheme = if tls.is_some() { "https" } else { "http" };
    let (listening, stage) = listen_early(limits, tls, listener).map_err(Failure::internal)?;
    let address = listening.address();
    let event = json!({ "listening": address.to_string(), "scheme": scheme, "store": shown_store });
    // The reader of stdout may be slow, too.
    let written = tokio::task::spawn_blocking(move || printer.event(&event));
    tokio::select! {
        written = written => written.map_err(Failure::internal)??,
        _ = signals.next() => {
            listening.stop().await;
            return Ok(exit::SUCCESS);
        }
    }
    printer.message(format_args!("leasehold: listening on {scheme}://{address}, store {shown_store}"));
    startup.listen = address;
    let Opened { leasehold, access, announcement } = tokio::select! {
        opened = startup.open() => opened?,
        _ = signals.next() => {
            listening.stop().await;
            return Ok(exit::SUCCESS);
        }
    };
    printer.message(announcement);
    printer.message(served(&format!("{scheme}://{address}"), &settings));
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
        server = server.public_metrics();
    }
    if settings.plain_metric_names {
        server = server.plain_metric_names();
    }
    if settings.no_dashboard {
        server = server.without_dashboard();
    }
    let server = server.build();
    let executions = if executions.is_empty() {
        None
    } else {
        Some(Executions::start(&leasehold, executions, pool, printer)?)
    };
    stage.open(&server);
    let signal = signals.next().await;
    tracing::info!(signal, "stopping");
    printer.message(
        "leasehold: stopping when the running executions have finished; a second signal stops it now",
    );
    server.drain();
    Ok(shut_down(leasehold, listening, executions, limits.grace, &mut signals).await)
}

/// Returns what is served, and where.
fn served(base: &str, settings: &Settings) -> String {
    let listed = |what: &str, names: Vec<String>| match names[..] {
        [] => String::new(),
        _ => format!("; {what} {}", names.join(", ")),
    };
    let workflows = settings.workflows.iter().map(|workflow| workflow.name.to_string()).collect();
    let webhooks =
        settings.triggers.iter().map(|trigger| format!("{base}/api/webhooks/{}", trigger.id)).collect();
    format!(
        "leasehold: API {base}/api/v1 (described by {base}/openapi.json), metrics {base}/metrics{}{}",
        listed("workflows", workflows),
        listed("webhooks", webhooks),
    )
}

/// Number of files reserved for other uses than connections: the store, commands, and libraries.
const RESERVED_FILES: usize = 256;

/// Limits the number of connections to what the limit of open files allows: otherwise clients that
/// only connect could keep commands from being started. The limit of open files itself is not
/// raised, because commands inherit it.
fn within_open_files(mut limits: Limits) -> Limits {
    let Ok((files, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return limits };
    let available = usize::try_from(files).unwrap_or(usize::MAX);
    let available = available.saturating_sub(RESERVED_FILES).max(available / 2);
    if available < limits.connections {
        let (wanted, hint) = (limits.connections, "raise the limit of open files (ulimit -n, LimitNOFILE=)");
        tracing::info!(
            files,
            connections = available,
            wanted,
            hint,
            "the number of connections is limited by the limit of open files"
        );
    }
    let connections = limits.connections.min(available);
    limits.connections = connections;
    limits.connections_per_address = limits.connections_per_address.min(connections);
    limits
}

/// Maximum time for recording killed executions in the store.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits for running work to finish, within the grace period. Returns the exit code.
async fn shut_down(
    leasehold: Leasehold,
    listening: Listening,
    executions: Option<Executions>,
    grace: Duration,
    signals: &mut StopSignals,
) -> i32 {
    let kill = executions.as_ref().map(Executions::kill);
    let (skip_grace, second_signal) = tokio::sync::oneshot::channel::<()>();
    let mut stopped = std::pin::pin!(async move {
        if let Some(executions) = executions {
            let deadline = async {
                let _ = tokio::time::timeout(grace, second_signal).await;
            };
            // The server listens until then, so that callers learn that it is shutting down.
            executions.stop(deadline).await;
        }
        listening.stop().await;
        leasehold.close().await;
    });
    let signal = tokio::select! {
        () = &mut stopped => return exit::SUCCESS,
        signal = signals.next() => signal,
    };
    drop(skip_grace);
    if let Some(kill) = kill {
        kill();
        tokio::select! {
            () = &mut stopped => {}
            () = tokio::time::sleep(KILL_TIMEOUT) => {}
            _ = signals.next() => {}
        }
    }
    exit::SIGNAL_BASE + signal
}

pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let message = format!("cannot listen on {address}: {error}");
        match error.kind() {
            // A retry may succeed: the program that uses the port may be about to exit.
            io::ErrorKind::AddrInUse => Failure::new(
                exit::UNAVAILABLE,
                "ADDRESS_TAKEN",
                format!("cannot listen on {address}: another program listens there already"),
            )
            .hint("end it, or choose another address with --listen"),
            io::ErrorKind::PermissionDenied => Failure::config(message)
                .exit_with(exit::NOT_PERMITTED)
                .hint("binding to ports below 1024 requires privileges; choose another port with --listen"),
            _ => Failure::config(message).hint("choose an address of this machine with --listen"),
        }
    })
}
