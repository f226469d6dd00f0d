//! `leasehold serve` and `leasehold token …`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use leasehold::model::{Holder, Ttl};
use leasehold_server::Role;
use leasehold_server::access::Scope;

use super::values::{self, ListView};
use crate::run::Contain;

const ABOUT: &str = "\
Serve locks, tasks and workflows over HTTP

Programs in any language can use locks, tasks and workflows; /openapi.json describes the API. A browser shows the dashboard at /. Any number of servers may use \
one store: a server has no state of its own. The settings file (docs/server.md) defines workflows, the webhooks and schedules \
that start them, tokens and limits. The server itself runs the commands of workflows, one execution at a time per workflow, \
under the same protection as leasehold tasks work: no process of a command outlives its lease.

If there is no token, the server creates a local token in a file that only this user can read: the leasehold commands of this \
user find it, and leasehold token local prints it. Without another token the server refuses to listen on an address that other \
machines can reach. With --open no token is required, on this machine only. If the store cannot be reached at the start, \
requests are answered with 503 until it can be reached.

SIGINT and SIGTERM stop the server in order: /readyz and new starts are answered with 503, waiting requests are ended, and \
running executions have the grace period to finish. A second signal stops the server immediately.";

const EXAMPLES: &str = "\
Examples:
  leasehold serve
  leasehold serve --config /etc/leasehold.toml --check
  leasehold token new --name ci --role worker && leasehold serve --listen 0.0.0.0:7420";

/// Serve locks, tasks and workflows over HTTP
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Address to listen on; :PORT or PORT is a port of 127.0.0.1 [default: 127.0.0.1:7420]
    #[arg(long, value_name = "ADDRESS", value_parser = values::listen_address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Settings file: workflows, triggers, schedules, tokens, limits [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Containment of the commands of workflows [default: auto] [env: LEASEHOLD_CONTAIN]
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) contain: Option<Contain>,
    /// Admit every process of this machine without a token, as admin; only if there is no token
    #[arg(long)]
    pub(crate) open: bool,
    /// Serve only the API, without the dashboard at /
    #[arg(long)]
    pub(crate) no_dashboard: bool,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// Only check the settings
    #[arg(long)]
    pub(crate) check: bool,
}

/// Files for TLS; they take precedence over those in the settings.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_field_names, reason = "the names of the flags")]
pub(crate) struct TlsArgs {
    /// Serve over TLS with this certificate (PEM); reloaded when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Admit only clients with a certificate of this CA (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    New(NewTokenArgs),
    /// Print the local token that a server on this machine created for this user
    Local,
    /// List the tokens of the store, including revoked ones
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        view: ListView,
    },
    /// Revoke a token: all servers of the store reject it within a second
    #[command(visible_alias = "rm")]
    Revoke {
        /// Id of the token, as shown by token list
        id: String,
    },
}

/// Create an API token and print it once: only its hash is stored
#[derive(Debug, Args)]
pub(crate) struct NewTokenArgs {
    /// Name of the token: shown in lists, and used as the holder of locks acquired with it
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Holder,
    /// Role: reader (read), worker (acquire locks, lease tasks, start workflows), operator (pause, cancel, abort), admin
    /// (release locks by force)
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: Role,
    /// Scope, repeatable: locks:NAME, queues:NAME, workflows:NAME, terraform:NAME, each also with a trailing * for all names
    /// with this prefix, or metrics [default: everything]
    #[arg(long, value_name = "SCOPE")]
    pub(crate) scope: Vec<Scope>,
    /// Time until the token expires [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) lasts: Option<Ttl>,
    /// Do not store the token; print its hash too, for the settings file of a server
    #[arg(long, conflicts_with = "lasts")]
    pub(crate) print_hash: bool,
}
