//! Wake-ups between processes of one machine: the lease id, sent to the process that the lease names.
//!
//! The address is derived from the identity of the process, so nothing is stored or cleaned up: an
//! abstract socket vanishes with its process. It cannot be reached across network namespaces; waiters
//! there poll.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{LazyLock, Mutex};

use uuid::Uuid;

use super::subscriptions::{Recipient, deliver};
use super::waiters::wake_by_id;
use crate::model::{Lease, LeaseId, Process};
use crate::store::support::mutex::lock;
use crate::store::this_process;

/// Common prefix of the names of all sockets.
const PREFIX: &str = "leasehold/";

/// Process whose listener was started, and whether it listens.
static LISTENS: Mutex<Option<(u32, bool)>> = Mutex::new(None);

/// Starts the listener of this process, once. Returns whether it listens; otherwise waiters poll.
pub(crate) fn listen() -> bool {
    let pid = std::process::id();
    let mut listens = lock(&LISTENS);
    match *listens {
        // A forked child has another PID, and so starts its own listener.
        Some((of, listens)) if of == pid => listens,
        _ => {
            let started = start();
            *listens = Some((pid, started));
            started
        }
    }
}

fn start() -> bool {
    let Some(socket) =
        this_process().and_then(|me| address(&me)).and_then(|at| UnixDatagram::bind_addr(&at).ok())
    else {
        tracing::debug!("no wake-ups from other processes: waiters poll");
        return false;
    };
    let listener = std::thread::Builder::new().name("leasehold-wake".to_owned());
    let started = listener.spawn(move || hear(&socket));
    if let Err(error) = &started {
        tracing::debug!(%error, "no wake-ups from other processes: waiters poll");
    }
    started.is_ok()
}

fn hear(socket: &UnixDatagram) {
    let mut heard = [0; 16];
    loop {
        match socket.recv(&mut heard) {
            // Any process of this machine may send to this socket. A false wake-up makes a waiter query
            // the store, and has no other effect.
            Ok(length) if length == heard.len() => {
                let id = Uuid::from_bytes(heard);
                wake_by_id(&LeaseId::from_uuid(id));
                deliver(&[Recipient::from_uuid(id)]);
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::debug!(%error, "no wake-ups from other processes any more: waiters poll");
                *lock(&LISTENS) = Some((std::process::id(), false));
                return;
            }
        }
    }
}

/// Notifies the process behind a lease that the lease was granted.
pub(crate) fn send_grant(lease: &Lease) {
    if let Some(to) = lease.request.process.as_ref().and_then(address) {
        send_to(&to, lease.request.lease_id.as_uuid());
    }
}

/// Sends a notice to every listening process of this machine: which of them has the lease or the
/// worker is not known. Rare, so the list of sockets is read each time; it has a few hundred lines.
pub(crate) fn broadcast(to: &[Recipient]) {
    let Ok(sockets) = std::fs::read_to_string("/proc/net/unix") else { return };
    let names = sockets.lines().filter_map(|line| line.split_ascii_whitespace().nth(7)?.strip_prefix('@'));
    for name in names.filter(|name| name.starts_with(PREFIX)) {
        if let Ok(address) = SocketAddr::from_abstract_name(name) {
            for recipient in to {
                send_to(&address, recipient.as_uuid());
            }
        }
    }
}

/// Sends an id. Best effort: a full or missing socket is no error, because the receiver polls.
fn send_to(to: &SocketAddr, id: &Uuid) {
    static SOCKET: LazyLock<Option<UnixDatagram>> = LazyLock::new(|| {
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(socket)
    });
    if let Some(socket) = &*SOCKET {
        let _ = socket.send_to_addr(id.as_bytes(), to);
    }
}

fn address(process: &Process) -> Option<SocketAddr> {
    let first = process.members.first()?;
    let name = format!("{PREFIX}{}/{}/{}", process.pid_namespace, first.pid, first.started);
    SocketAddr::from_abstract_name(name).ok()
}
