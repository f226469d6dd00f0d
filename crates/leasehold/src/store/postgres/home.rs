//! The thread on which connections live. A caller's runtime may be busy, have no sockets, or end; leases must still be
//! renewed.

use std::sync::{Mutex, PoisonError};

use tokio::runtime::Handle;

use crate::error::{Error, Result, Trouble};

/// The runtime of this process's connections. Started with the first store, and there to stay.
pub(super) fn home() -> Result<Handle> {
    static HOME: Mutex<Option<(u32, Handle)>> = Mutex::new(None);
    let mut home = HOME.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some((owner, handle)) = &*home
        && *owner == pid
    {
        return Ok(handle.clone()); // A fork has no such thread until it starts one.
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot_start)?;
    let handle = runtime.handle().clone();
    let thread = std::thread::Builder::new().name("leasehold-postgres".to_owned());
    thread.spawn(move || runtime.block_on(std::future::pending::<()>())).map_err(cannot_start)?;
    *home = Some((pid, handle.clone()));
    Ok(handle)
}

fn cannot_start(error: std::io::Error) -> Error {
    let message = "the thread that talks to PostgreSQL cannot be started";
    Error::store(Trouble::Unavailable, message, "let this user have more threads").because(error)
}
