//! Wake-ups between processes of one machine: the lease id, sent to the process that the lease names.
//!
//! The address is made from the process's own name, so nobody has to store or clean up anything: an abstract socket
//! goes with its process. Across network namespaces it cannot be reached, and waiters there poll.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{LazyLock, Mutex, PoisonError};

use uuid::Uuid;

use super::hub::ring;
use crate::model::{Lease, LeaseId, Process};
use crate::store::this_process;

/// Starts the listener of this process, once. Without one, waiters poll.
pub(super) fn listen() {
    static LISTENS: Mutex<Option<u32>> = Mutex::new(None);
    let pid = std::process::id();
    let mut listens = LISTENS.lock().unwrap_or_else(PoisonError::into_inner);
    if *listens == Some(pid) {
        return; // A fork has no listener of its own until it asks for one.
    }
    *listens = Some(pid);
    let Some(socket) =
        this_process().and_then(|me| address(&me)).and_then(|at| UnixDatagram::bind_addr(&at).ok())
    else {
        tracing::debug!("no wake-ups from other processes: waiters poll");
        return;
    };
    let listener = std::thread::Builder::new().name("leasehold-wake".to_owned());
    if let Err(error) = listener.spawn(move || hear(&socket)) {
        tracing::debug!(%error, "no wake-ups from other processes: waiters poll");
    }
}

fn hear(socket: &UnixDatagram) {
    let mut heard = [0; 16];
    while let Ok(length) = socket.recv(&mut heard) {
        // Anybody on this machine may send here. A wrong wake-up makes a waiter ask the store, and nothing else.
        if length == heard.len() {
            ring(&LeaseId::from_uuid(Uuid::from_bytes(heard)));
        }
    }
}

/// Tells the process behind a lease that it has been served. A full or missing mailbox is none of our troubles.
pub(super) fn send(lease: &Lease) {
    static SOCKET: LazyLock<Option<UnixDatagram>> = LazyLock::new(|| {
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(socket)
    });
    let to = lease.ask.process.as_ref().and_then(address);
    if let (Some(socket), Some(to)) = (&*SOCKET, to) {
        let _ = socket.send_to_addr(lease.ask.lease_id.as_uuid().as_bytes(), &to);
    }
}

fn address(process: &Process) -> Option<SocketAddr> {
    let first = process.members.first()?;
    let name = format!("leasehold/{}/{}/{}", process.pid_namespace, first.pid, first.started);
    SocketAddr::from_abstract_name(name).ok()
}
