//! `leasehold serve` and `leasehold token …`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use leasehold::model::{Holder, Ttl};
use leasehold_server::Role;
use leasehold_server::access::Scope;

use super::values;
use crate::run::Contain;

const ABOUT: &str = "\
Serve locks, tasks and workflows over HTTP

Locks, tasks and workflows for programs in any language; /openapi.json describes it all. Any number of servers may run over one \
store: none has a state of its own. The settings file (docs/server.md) has workflows, the webhooks and schedules that start \
them, tokens and limits. Workflows with a command are run by the server itself, one at a time each, fenced like the commands of \
leasehold tasks work: nothing of them outlives its lease.

As long as there is no token, the server makes one for this user of this machine, in a file that only this user can read: \
the leasehold commands of this user find it by themselves, and leasehold token local prints it. Without another token it \
refuses to listen for other machines. With --open it needs no token, on this machine alone. If the store cannot be reached at \
the start, requests are answered with 503 until it can.

SIGINT and SIGTERM end it in order: /readyz and new starts are answered with 503, those who wait are sent away, and what runs has \
the grace time to end. A second one ends it at once.";

const EXAMPLES: &str = "\
Examples:
  leasehold serve
  leasehold serve --config /etc/leasehold.toml --check
  leasehold token new --name ci --role worker && leasehold serve --listen 0.0.0.0:7420";

/// Serve locks, tasks and workflows over HTTP
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Where to listen [default: 127.0.0.1:7420]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
    /// The settings: workflows, triggers, schedules, tokens, limits
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[expect(clippy::doc_markdown, reason = "this is the help text")]
    /// What keeps the processes of the commands of workflows together [default: auto] [env: LEASEHOLD_CONTAIN]
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) contain: Option<Contain>,
    /// Let in every process of this machine without a token, as admin; only as long as there is no token
    #[arg(long)]
    pub(crate) open: bool,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// Only say whether the settings can be used
    #[arg(long)]
    pub(crate) check: bool,
}

/// The files of TLS. They come before those of the settings.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_field_names, reason = "the names of the flags")]
pub(crate) struct TlsArgs {
    /// Serve over TLS with this certificate, in PEM; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Let in only clients with a certificate of this CA, in PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    New(NewTokenArgs),
    /// Print the token that a server on this machine made for this user
    Local,
    /// List the tokens of the store, those that were revoked too
    List,
    /// Revoke a token: all servers over the store refuse it within a second
    Revoke {
        /// The token, as token list calls it
        id: String,
    },
}

/// Make a token for the server and write it to stdout, once: only its hash is kept
#[derive(Debug, Args)]
pub(crate) struct NewTokenArgs {
    /// Whose it is: shown in lists, and the holder of what is taken with it
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Holder,
    /// What it allows: reader (look), worker (take locks and tasks, start workflows), operator (pause, cancel, abort), admin (take
    /// locks away)
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: Role,
    /// What it reaches, several times for several: locks:NAME, queues:NAME, workflows:NAME, terraform:NAME, each also with
    /// a * at the end for all names that begin so, or metrics [default: everything]
    #[arg(long, value_name = "SCOPE")]
    pub(crate) scope: Vec<Scope>,
    /// It ends by itself after so long [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) lasts: Option<Ttl>,
    /// Keep it nowhere, and write its hash too, for the settings file of a server
    #[arg(long, conflicts_with = "lasts")]
    pub(crate) print_hash: bool,
}
