//! Address on loopback that leads to an engine, and after a failover to another one.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Listener that forwards its connections. Its threads end with the test.
pub(crate) struct Relay {
    address: SocketAddr,
    shared: Arc<Mutex<State>>,
}

struct State {
    /// Port of the engine; `None` if it cannot be reached.
    target: Option<u16>,
    connections: Vec<TcpStream>,
}

impl Relay {
    /// Starts a relay to the engine at this port.
    pub(crate) fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Mutex::new(State { target: Some(port), connections: Vec::new() }));
        let of_thread = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // An engine that refuses a connection, or that has none, closes it.
                let _ = forward(&client, &mut of_thread.lock().unwrap());
            }
        });
        Self { address, shared }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Ends all connections; new ones lead to this port, or nowhere.
    pub(crate) fn lead_to(&self, port: Option<u16>) {
        let mut state = self.shared.lock().unwrap();
        state.target = port;
        for connection in state.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn forward(client: &TcpStream, state: &mut State) -> io::Result<()> {
    let target = state.target.ok_or(io::ErrorKind::ConnectionRefused)?;
    let server = TcpStream::connect(("127.0.0.1", target))?;
    for stream in [client, &server] {
        stream.set_nodelay(true)?;
        state.connections.push(stream.try_clone()?);
    }
    for (from, to) in [(client, &server), (&server, client)] {
        let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
        std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
    }
    Ok(())
}
