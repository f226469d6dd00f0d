//! Server processes: leasehold, and a server whose handler does nothing.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use axum::routing::post;
use axum::serve::ListenerExt;
use leasehold::Leasehold;
use leasehold_server::{Access, Limits, Server, listen};
use tokio::net::TcpListener;

use crate::cli::{HttpServerArgs, Kind};
use crate::client_processes::{arg_name, this_program};
use crate::sandbox::runtime;

/// Runs a server process: prints its address, and serves until its input ends.
pub(crate) fn serve(args: &HttpServerArgs) -> Result<()> {
    let runtime = runtime()?;
    let kind = args.kind;
    runtime.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        let serving = tokio::spawn(serve_on(kind, listener));
        // The input ends when the parent process closes it or exits.
        let input = tokio::task::spawn_blocking(|| std::io::stdin().lock().read_line(&mut String::new()));
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
        Kind::Leasehold => {
            let leasehold = Leasehold::connect("memory:").await?;
            let server = Server::builder(leasehold).access(Access::Open).limits(Limits::default()).build();
            let listening = listen(&server, listener)?;
            std::future::pending::<()>().await;
            listening.stop().await;
            Ok(())
        }
    }
}

/// Returns a JSON API with an empty handler.
fn bare() -> axum::Router {
    let nothing = async |axum::Json(_): axum::Json<serde_json::Value>| {
        axum::Json(serde_json::json!({ "success": true }))
    };
    axum::Router::new().route("/api/v1/locks/{name}/{verb}", post(nothing))
}

/// Server process. It is killed when this value is dropped.
pub(super) struct ServerProcess {
    child: Child,
    pub(super) address: String,
}

impl ServerProcess {
    pub(super) fn new(kind: Kind) -> Result<Self> {
        let mut child = Command::new(this_program()?)
            .args(["http-server", "--kind", &arg_name(&kind)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the server process cannot be started")?;
        let mut address = String::new();
        BufReader::new(child.stdout.take().expect("the process was started with pipes"))
            .read_line(&mut address)?;
        Ok(Self { child, address: address.trim().to_owned() })
    }

    /// Returns its resident memory, in bytes.
    pub(super) fn memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib * 1024)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
