//! Server processes: leasehold, and a server whose handler does nothing.

use anyhow::{Context, Result};
use axum::routing::post;
use axum::serve::ListenerExt;
use leasehold::Leasehold;
use leasehold_server::{Access, Limits, Server, listen};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::child::{ChildProcess, read_line};
use crate::sandbox::runtime;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// axum handler that reads JSON and returns a fixed response.
    Bare,
    /// leasehold on `memory:`.
    Leasehold,
    /// leasehold on the store with this URL.
    Store(String),
}

/// Runs a server process: prints its address, and serves until its input ends.
pub(crate) fn serve(kind: Kind) -> Result<()> {
    let runtime = runtime()?;
    runtime.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        let serving = tokio::spawn(serve_on(kind, listener));
        // The input ends when the parent process closes it or exits.
        let input = tokio::task::spawn_blocking(read_line);
        tokio::select! {
            served = serving => served?,
            _ = input => Ok(()),
        }
    })?;
    runtime.shutdown_background();
    Ok(())
}

async fn serve_on(kind: Kind, listener: TcpListener) -> Result<()> {
    match kind {
        Kind::Bare => {
            let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
            Ok(axum::serve(listener, bare()).await?)
        }
        Kind::Leasehold => serve_store("memory:", listener).await,
        Kind::Store(url) => serve_store(&url, listener).await,
    }
}

async fn serve_store(url: &str, listener: TcpListener) -> Result<()> {
    let leasehold = Leasehold::connect(url).await?;
    // All clients of the benchmark have one address.
    let mut limits = Limits::default();
    limits.connections_per_address = limits.connections;
    let server = Server::builder(leasehold).access(Access::Open).limits(limits).build();
    let listening = listen(&server, listener)?;
    std::future::pending::<()>().await;
    listening.stop().await;
    Ok(())
}

/// Returns a JSON API with an empty handler.
fn bare() -> axum::Router {
    let nothing = async |axum::Json(_): axum::Json<serde_json::Value>| {
        axum::Json(serde_json::json!({ "success": true }))
    };
    axum::Router::new().route("/api/v1/locks/{name}/{verb}", post(nothing))
}

pub(crate) struct ServerProcess {
    process: ChildProcess,
    pub(crate) address: String,
}

impl ServerProcess {
    pub(crate) fn new(kind: &Kind) -> Result<Self> {
        let mut process = ChildProcess::start("http-server", kind)?;
        let address = process.read_line()?;
        Ok(Self { process, address })
    }

    /// Returns its resident memory, in bytes.
    pub(super) fn memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib * 1024)
    }
}
