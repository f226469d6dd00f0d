//! HTTP server for leasehold: clients in any language call it, and other programs can mount [`Server`].
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

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod access;
mod api;
mod builder;
pub mod config;
mod dashboard;
mod metrics;
mod openapi;
#[cfg(feature = "otlp")]
pub mod otlp;
mod problem;
mod request;
mod server;
mod status;
mod streams;
mod sync;
mod terraform;
mod transport;
mod webhooks;
mod workflows;

pub use access::{Access, Role};
pub use builder::{Server, ServerBuilder};
pub use problem::Problem;
pub use server::{Audit, Limits, Maintenance, TerraformOptions};
pub use transport::listen::{Listening, PendingServer, listen, listen_early, listen_tls};
pub use transport::tls::{Tls, TlsError, TlsFiles};
pub use webhooks::{Condition, Filter, Pattern, Pointer, Scheme, Secret};
pub use workflows::{CommandSettings, Runner, Trigger, Workflow};
