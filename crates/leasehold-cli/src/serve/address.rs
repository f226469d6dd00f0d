//! Where to listen, and why that may fail.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::exit;
use crate::output::Failure;

/// Takes the address, which nobody else may have.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let words = format!("cannot listen on {address}: {error}");
        match error.kind() {
            // Later it may work: what has the port may be about to end.
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
