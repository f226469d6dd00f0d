//! TCP proxy on loopback between a store and its engine, with faults on demand.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

/// Fault that applies to all traffic from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No fault.
    None,
    /// Delays each direction by this time.
    Delay(Duration),
    /// Blocks all traffic. Connections stay open, and blocked data arrives when the fault ends, as with TCP.
    BlackHole,
    /// Resets every connection as soon as data is sent on it.
    Reset,
    /// Forwards requests, drops this number of replies and resets their connections; then no fault.
    DropReplies(u32),
    /// Delays the next request by this time, whether or not its sender still waits, together with all later data on its
    /// connection; other connections are not delayed. See [`Proxy::delayed_requests_are_done`]. Then no fault.
    DelayRequest(Duration),
    /// Forwards the next reply. The fault of what follows is this one.
    AfterReply(NextFault),
}

impl Fault {
    /// Whether the fault applies to one request or reply.
    const fn is_of_one_message(self) -> bool {
        matches!(self, Self::DropReplies(_) | Self::DelayRequest(_) | Self::AfterReply(_))
    }
}

/// Fault that follows on another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextFault {
    /// [`Fault::DropReplies`] of one reply.
    DropReply,
    /// [`Fault::DelayRequest`]
    DelayRequest(Duration),
}

/// Traffic so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) connections: u64,
    /// Bytes sent to the engine.
    pub(crate) there: u64,
    /// Bytes received from the engine.
    pub(crate) back: u64,
}

/// Proxy on a thread of its own, so that a test may block. Stops when it is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
    end: Option<oneshot::Sender<()>>,
}

struct Shared {
    target: SocketAddr,
    fault: watch::Sender<Fault>,
    /// Number of calls of [`Proxy::cut_all`]; a connection ends when it rises.
    cuts: watch::Sender<u64>,
    connections: AtomicU64,
    there: AtomicU64,
    back: AtomicU64,
    delayed: AtomicU64,
    done: AtomicU64,
    /// See [`Proxy::aim_at`].
    aim: Mutex<Vec<u8>>,
}

impl Proxy {
    /// Starts a proxy for the engine at this address.
    pub(crate) fn before(target: SocketAddr) -> Self {
        let (fault, cuts) = (watch::Sender::new(Fault::None), watch::Sender::new(0));
        let [connections, there, back, delayed, done] = [0; 5].map(AtomicU64::new);
        let aim = Mutex::default();
        let shared = Shared { target, fault, cuts, connections, there, back, delayed, done, aim };
        let shared = Arc::new(shared);
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = oneshot::channel();
        let accepts = accept(listener, shared.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = accepts => {}
                    _ = ended => {}
                }
            });
        });
        Self { address, shared, thread: Some(thread), end: Some(end) }
    }

    /// Returns the address to connect to instead of that of the engine.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn set(&self, fault: Fault) {
        self.shared.fault.send_replace(fault);
    }

    /// Limits faults of one request or reply to requests that contain this text, and to replies on connections whose
    /// last request contains it. Otherwise a call that the store makes in the background could meet the fault instead.
    pub(crate) fn aim_at(&self, text: &str) {
        *self.shared.aim.lock().unwrap() = text.as_bytes().to_vec();
    }

    /// Resets all open connections; new ones are accepted.
    pub(crate) fn cut_all(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Waits until a request is being delayed, or was.
    pub(crate) async fn wait_until_delayed(&self) {
        while self.shared.delayed.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Whether a request was delayed and each delayed request is done: the engine has answered it or has closed its
    /// connection.
    pub(crate) fn delayed_requests_are_done(&self) -> bool {
        let delayed = self.shared.delayed.load(Ordering::SeqCst);
        delayed > 0 && delayed == self.shared.done.load(Ordering::SeqCst)
    }

    pub(crate) fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Shared { connections, there, back, .. } = &*self.shared;
        Counts { connections: read(connections), there: read(there), back: read(back) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let listener = TcpListener::from_std(listener).unwrap();
    // The connections end when this set is dropped, so none outlives the proxy.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        connections.spawn(serve(client, shared.clone()));
    }
}

async fn serve(mut client: TcpStream, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    let Ok(mut server) = TcpStream::connect(shared.target).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let connection = Connection::default();
    let end = tokio::select! {
        end = forward(Direction::Request, from_client, to_server, &shared, &connection) => end,
        end = forward(Direction::Reply, from_server, to_client, &shared, &connection) => end,
        _ = cuts.changed() => End::Reset,
    };
    connection.finish_delayed(&shared);
    if end == End::Reset {
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

/// State of one connection.
#[derive(Default)]
struct Connection {
    /// Whether a request is delayed and not done.
    is_delayed: AtomicBool,
    /// Whether the last request contains the text of [`Proxy::aim_at`].
    is_aimed_at: AtomicBool,
    answered: tokio::sync::Notify,
}

impl Connection {
    fn finish_delayed(&self, shared: &Shared) {
        if self.is_delayed.swap(false, Ordering::SeqCst) {
            shared.done.fetch_add(1, Ordering::SeqCst);
            self.answered.notify_one();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Reply,
}

#[derive(PartialEq, Eq)]
enum End {
    Closed,
    Reset,
}

async fn forward(
    direction: Direction,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    shared: &Shared,
    connection: &Connection,
) -> End {
    let mut fault = shared.fault.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return End::Closed,
            Ok(length) => length,
        };
        if direction == Direction::Reply {
            connection.finish_delayed(shared);
        }
        if fault.wait_for(|fault| *fault != Fault::BlackHole).await.is_err() {
            return End::Closed;
        }
        if direction == Direction::Request {
            let aim = shared.aim.lock().unwrap();
            let is_aimed_at = aim.is_empty() || buffer[..length].windows(aim.len()).any(|part| part == *aim);
            connection.is_aimed_at.store(is_aimed_at, Ordering::SeqCst);
        }
        let mut now = *fault.borrow_and_update();
        if now.is_of_one_message() && !connection.is_aimed_at.load(Ordering::SeqCst) {
            now = Fault::None;
        }
        match now {
            Fault::None | Fault::BlackHole => {}
            Fault::Delay(delay) => tokio::time::sleep(delay).await,
            Fault::Reset => return End::Reset,
            Fault::DropReplies(_) | Fault::AfterReply(_) if direction == Direction::Request => {}
            Fault::DelayRequest(_) if direction == Direction::Reply => {}
            // Before the reply is forwarded: its recipient may send the next request at once.
            Fault::AfterReply(NextFault::DropReply) => _ = shared.fault.send_replace(Fault::DropReplies(1)),
            Fault::AfterReply(NextFault::DelayRequest(time)) => {
                shared.fault.send_replace(Fault::DelayRequest(time));
            }
            Fault::DelayRequest(time) => {
                shared.fault.send_replace(Fault::None);
                connection.is_delayed.store(true, Ordering::SeqCst);
                shared.delayed.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(time).await;
                if to.write_all(&buffer[..length]).await.is_err() {
                    return End::Closed;
                }
                // Its sender may have disconnected: the connection must not end before the engine has answered.
                connection.answered.notified().await;
                continue;
            }
            Fault::DropReplies(more) => {
                let next = if more > 1 { Fault::DropReplies(more - 1) } else { Fault::None };
                shared.fault.send_replace(next);
                return End::Reset;
            }
        }
        // Counted before it is forwarded, so that the recipient finds it counted.
        let passed = if direction == Direction::Request { &shared.there } else { &shared.back };
        passed.fetch_add(length as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..length]).await.is_err() {
            return End::Closed;
        }
    }
}

mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpStream;
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    /// Starts an engine that answers every byte with the next one; the receiver gets the requests.
    fn engine() -> (SocketAddr, mpsc::Receiver<u8>) {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, sender) = (stream.unwrap(), sender.clone());
                std::thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() && sender.send(byte[0]).is_ok() {
                        byte[0] += 1;
                        if stream.write_all(&byte).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        (address, requests)
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    fn request(stream: &mut TcpStream, byte: u8) -> Result<u8, ErrorKind> {
        stream.write_all(&[byte]).map_err(|error| error.kind())?;
        let mut answer = [0];
        stream.read_exact(&mut answer).map_err(|error| error.kind())?;
        Ok(answer[0])
    }

    #[test]
    fn traffic_is_forwarded_and_counted() {
        let (engine, _requests) = engine();
        let proxy = Proxy::before(engine);
        let mut stream = connect(&proxy);
        assert_eq!(request(&mut stream, 1), Ok(2));
        assert_eq!(request(&mut connect(&proxy), 5), Ok(6));
        assert_eq!(proxy.counts(), Counts { connections: 2, there: 2, back: 2 });
    }

    #[test]
    fn a_delay_applies_to_each_direction() {
        let (engine, _requests) = engine();
        let proxy = Proxy::before(engine);
        proxy.set(Fault::Delay(Duration::from_millis(30)));
        let start = Instant::now();
        assert_eq!(request(&mut connect(&proxy), 1), Ok(2));
        assert!(start.elapsed() >= Duration::from_millis(60));
    }

    #[test]
    fn blocked_data_arrives_when_the_fault_ends() {
        let (engine, requests) = engine();
        let proxy = Proxy::before(engine);
        let mut stream = connect(&proxy);
        proxy.set(Fault::BlackHole);
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert_eq!(request(&mut stream, 1), Err(ErrorKind::WouldBlock));
        assert!(requests.try_recv().is_err());
        proxy.set(Fault::None);
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(request(&mut stream, 7), Ok(2));
    }

    #[test]
    fn a_reply_is_dropped_after_its_request_was_forwarded() {
        let (engine, requests) = engine();
        let proxy = Proxy::before(engine);
        let mut stream = connect(&proxy);
        assert_eq!(request(&mut stream, 1), Ok(2));
        proxy.set(Fault::DropReplies(1));
        assert_eq!(request(&mut stream, 3), Err(ErrorKind::ConnectionReset));
        assert_eq!(requests.try_iter().collect::<Vec<_>>(), [1, 3]);
        assert_eq!(request(&mut connect(&proxy), 5), Ok(6));
    }

    #[test]
    fn one_request_is_delayed_and_the_others_are_not() {
        let (engine, requests) = engine();
        let proxy = Proxy::before(engine);
        let mut stream = connect(&proxy);
        assert_eq!(request(&mut stream, 1), Ok(2));
        assert!(!proxy.delayed_requests_are_done());
        proxy.set(Fault::DelayRequest(Duration::from_millis(200)));
        stream.write_all(&[3]).unwrap();
        while proxy.shared.delayed.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        drop(stream);
        assert_eq!(request(&mut connect(&proxy), 5), Ok(6));
        let start = Instant::now();
        while !proxy.delayed_requests_are_done() {
            assert!(start.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        assert_eq!(requests.try_iter().collect::<Vec<_>>(), [1, 5, 3]);
    }

    #[test]
    fn a_fault_may_be_aimed_at_requests() {
        let (engine, _requests) = engine();
        let proxy = Proxy::before(engine);
        let (mut stream, mut other) = (connect(&proxy), connect(&proxy));
        proxy.aim_at("\u{5}");
        proxy.set(Fault::DropReplies(1));
        assert_eq!(request(&mut stream, 1), Ok(2));
        assert_eq!(request(&mut stream, 5), Err(ErrorKind::ConnectionReset));
        proxy.set(Fault::DelayRequest(Duration::from_millis(30)));
        assert_eq!(request(&mut other, 1), Ok(2));
        assert!(!proxy.delayed_requests_are_done());
        assert_eq!(request(&mut other, 5), Ok(6));
        assert!(proxy.delayed_requests_are_done());
    }

    #[test]
    fn a_fault_may_follow_on_the_next_reply() {
        let (engine, requests) = engine();
        let proxy = Proxy::before(engine);
        let mut stream = connect(&proxy);
        proxy.set(Fault::AfterReply(NextFault::DropReply));
        assert_eq!(request(&mut stream, 1), Ok(2));
        assert_eq!(request(&mut stream, 3), Err(ErrorKind::ConnectionReset));
        proxy.set(Fault::AfterReply(NextFault::DelayRequest(Duration::from_millis(30))));
        let mut stream = connect(&proxy);
        assert_eq!(request(&mut stream, 5), Ok(6));
        let start = Instant::now();
        assert_eq!(request(&mut stream, 7), Ok(8));
        assert!(start.elapsed() >= Duration::from_millis(30));
        assert_eq!(requests.try_iter().collect::<Vec<_>>(), [1, 3, 5, 7]);
    }

    #[test]
    fn connections_are_reset() {
        let (engine, _requests) = engine();
        let proxy = Proxy::before(engine);
        let mut stream = connect(&proxy);
        assert_eq!(request(&mut stream, 1), Ok(2));
        proxy.cut_all();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(request(&mut connect(&proxy), 1), Ok(2));
        proxy.set(Fault::Reset);
        assert_eq!(request(&mut connect(&proxy), 1), Err(ErrorKind::ConnectionReset));
    }

    #[test]
    fn a_dropped_proxy_closes_its_port_and_its_connections() {
        let (engine, _requests) = engine();
        let proxy = Proxy::before(engine);
        let (address, mut stream) = (proxy.address(), connect(&proxy));
        assert_eq!(request(&mut stream, 1), Ok(2));
        drop(proxy);
        assert!(TcpStream::connect(address).is_err());
        assert!(request(&mut stream, 1).is_err());
    }
}
