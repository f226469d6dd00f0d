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
//! | `listen.rs` | connections: accepting, limits, a graceful end |
//! | `early.rs` | what is answered before the store is there |
//! | `status.rs` | the one file that knows HTTP statuses |
//! | `problem.rs` | what goes wrong, as `application/problem+json` |
//! | `envelope.rs` | what every request gets: its id, its span, its problem written out |
//! | `body.rs` | reading a request: JSON with clear complaints, bounded in size and time |
//! | `feed.rs` | what happens to locks, read once for everybody who listens |
//! | `access/` | who may do what: roles and tokens |
//! | `webhooks/` | signatures, keys and deliveries of webhooks |
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
mod early;
mod envelope;
mod feed;
mod listen;
mod metrics;
mod openapi;
#[cfg(feature = "otlp")]
pub mod otlp;
mod problem;
mod router;
mod server;
mod slow_reader;
mod status;
mod terraform;
mod webhooks;
mod workflows;

pub use access::{Access, Role};
pub use listen::{Listening, Stage, listen, listen_early};
pub use problem::Problem;
pub use server::{Limits, Server, ServerBuilder};
pub use terraform::TerraformOptions;
pub use webhooks::{Pointer, Scheme, Secret};
pub use workflows::{CommandSettings, Runner, Trigger, Workflow};
