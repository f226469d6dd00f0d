//! `leasehold serve` and `leasehold token …`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use leasehold::model::{Holder, Ttl};
use leasehold_server::Role;

use super::values;
use crate::run::Contain;

const ABOUT: &str = "\
Serve locks, tasks and workflows over HTTP

Locks, tasks and workflows for programs in any language; /openapi.json describes it all. Any number of servers may run over one \
store: none has a state of its own. The settings file (docs/server.md) has workflows, the webhooks and schedules that start \
them, tokens and limits. Workflows with a command are run by the server itself, one at a time each, fenced like the commands of \
leasehold tasks work: nothing of them outlives its lease.

Without any token the server answers to this machine alone, and refuses to listen elsewhere. If the store cannot be reached at \
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
    /// Only say whether the settings can be used
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    New(NewTokenArgs),
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
    /// It ends by itself after so long [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) lasts: Option<Ttl>,
    /// Keep it nowhere, and write its hash too, for the settings file of a server
    #[arg(long, conflicts_with = "lasts")]
    pub(crate) print_hash: bool,
}
