//! leasehold over HTTP: one server for programs in any language, and a [`Server`] that other programs can mount.
//!
//! ```no_run
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold::Leasehold;
//! use leasehold_server::{Access, Server};
//!
//! let leasehold = Leasehold::connect("sqlite:").await?;
//! let server = Server::builder(leasehold).access(Access::Open).build();
//! let app = axum::Router::new().nest("/leasehold", server.router());
//! # drop(app); Ok(()) }
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `server.rs` | what a server is made of, and its settings |
//! | `router.rs` | every path there is, and what all requests go through |
//! | `openapi.rs` | the description of the API, from the code |
//! | `described.rs` | values of requests as schemas |
//! | `roles.rs` | the least role of each operation, from its handler |
//! | `listen.rs` | connections: accepting, limits, a graceful end |
//! | `timeouts.rs` | timeouts of one connection: heads, idle time, clients that do not read |
//! | `tls.rs` | encryption: certificates, client certificates, reading them again when they change |
//! | `early.rs` | what is answered before the store is there |
//! | `status.rs` | the one file that knows HTTP statuses |
//! | `problem.rs` | what goes wrong, as `application/problem+json` |
//! | `envelope.rs` | what every request gets: its id, its span, its problem written out |
//! | `body.rs` | reading a request: JSON with clear complaints, bounded in size and time |
//! | `strict.rs` | JSON as it is described: an array is no object |
//! | `feed.rs` | what happens to locks, read once for everybody who listens |
//! | `access/` | who may do what: roles and tokens |
//! | `webhooks/` | signatures, filters, keys and deliveries of webhooks |
//! | `workflows/` | the workflows that the server starts, and what starts them |
//! | `config/` | `leasehold.toml` |
//! | `api/` | the endpoints, one file per kind of thing |
//! | `metrics/` | what is measured |
//! | `otlp.rs` | traces to an OpenTelemetry collector (feature `otlp`) |
//! | `terraform/` | the HTTP backend of Terraform and `OpenTofu` |

pub mod access;
mod api;
mod body;
pub mod config;
mod described;
mod early;
mod envelope;
mod feed;
mod listen;
mod metrics;
mod openapi;
#[cfg(feature = "otlp")]
pub mod otlp;
mod problem;
mod roles;
mod router;
mod server;
mod status;
mod strict;
mod terraform;
mod timeouts;
mod tls;
mod webhooks;
mod workflows;

pub use access::{Access, Role};
pub use listen::{Listening, Stage, listen, listen_early, listen_tls};
pub use problem::Problem;
pub use server::{Audit, Limits, Maintenance, Server, ServerBuilder};
pub use terraform::TerraformOptions;
pub use tls::{Tls, TlsError, TlsFiles};
pub use webhooks::{Condition, Filter, Pattern, Pointer, Scheme, Secret};
pub use workflows::{CommandSettings, Runner, Trigger, Workflow};
