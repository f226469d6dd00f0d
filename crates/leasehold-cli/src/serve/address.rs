//! Listening address, and the errors of binding to it.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::exit;
use crate::output::Failure;

/// Binds to the address exclusively.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let words = format!("cannot listen on {address}: {error}");
        match error.kind() {
            // A retry may succeed: the program that uses the port may be about to exit.
            io::ErrorKind::AddrInUse => Failure::unavailable(format!(
                "cannot listen on {address}: another program listens there already"
            ))
            .hint("end it, or choose another address with --listen"),
            io::ErrorKind::PermissionDenied => Failure::config(words)
                .exit_with(exit::NOT_PERMITTED)
                .hint("ports below 1024 are not for everybody; choose another with --listen"),
            _ => Failure::config(words).hint("choose an address of this machine with --listen"),
        }
    })
}
