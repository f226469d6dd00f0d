//! The servers, each in a process of its own: leasehold's, and one whose handler does nothing.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use axum::routing::post;
use axum::serve::ListenerExt;
use clap::ValueEnum;
use leasehold::Leasehold;
use leasehold_server::{Access, Limits, Server, listen};
use tokio::net::TcpListener;

use crate::cli::HttpServerArgs;
use crate::place::runtime;
use crate::workers::{this_program, word};

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A bare axum handler that reads its JSON and gives a fixed answer.
    Bare,
    /// leasehold on `memory:`.
    Leasehold,
}

/// The side of the server: says where it listens, and serves until its input ends.
pub(crate) fn serve(args: &HttpServerArgs) -> Result<()> {
    let runtime = runtime()?;
    let kind = args.kind;
    runtime.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        let serving = tokio::spawn(serve_on(kind, listener));
        // Whoever started us ends us by closing our input, or by being gone.
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
            let quick = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
            Ok(axum::serve(quick, bare()).await?)
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

/// The least that a handler of a JSON API can do.
fn bare() -> axum::Router {
    let nothing = async |axum::Json(_): axum::Json<serde_json::Value>| {
        axum::Json(serde_json::json!({ "success": true }))
    };
    axum::Router::new().route("/api/v1/locks/{name}/{verb}", post(nothing))
}

/// A server that was started. It ends with this value.
pub(super) struct Started {
    child: Child,
    pub(super) address: String,
}

impl Started {
    pub(super) fn new(kind: Kind) -> Result<Self> {
        let mut child = Command::new(this_program()?)
            .args(["http-server", "--kind", &word(&kind)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("a server cannot be started")?;
        let mut address = String::new();
        BufReader::new(child.stdout.take().expect("it was started with a pipe")).read_line(&mut address)?;
        Ok(Self { child, address: address.trim().to_owned() })
    }

    /// How much memory it takes up now, in bytes.
    pub(super) fn memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib * 1024)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
