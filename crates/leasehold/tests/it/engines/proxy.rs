//! A network that fails on demand: a TCP proxy on loopback, to stand between a store and its engine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

/// What happens to everything that passes from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing bad.
    None,
    /// It takes this much longer, each way.
    Delay(Duration),
    /// Nothing gets through. Connections stay, and whatever was sent arrives when this is over, as with TCP.
    BlackHole,
    /// Every connection is reset as soon as somebody says something on it.
    Reset,
    /// Requests get through; so many replies do not, and their connections are reset. After that, nothing bad.
    DropReplies(u32),
    /// The next request is held back for this long, whether or not its sender still waits, and everything behind it on its
    /// connection; other connections are not. See [`Proxy::held_back_are_settled`]. After that, nothing bad.
    HoldBack(Duration),
}

/// What has passed so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) connections: u64,
    /// Bytes that got to the engine.
    pub(crate) there: u64,
    /// Bytes that got back.
    pub(crate) back: u64,
}

/// The proxy. It runs in a thread of its own, so that a test may block, and ends when it is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
    end: Option<oneshot::Sender<()>>,
}

struct Shared {
    target: SocketAddr,
    fault: watch::Sender<Fault>,
    /// Counts the cuts: whoever sees it rise ends.
    cuts: watch::Sender<u64>,
    connections: AtomicU64,
    there: AtomicU64,
    back: AtomicU64,
    held_back: AtomicU64,
    settled: AtomicU64,
}

impl Proxy {
    /// Starts one before the engine at this address.
    pub(crate) fn before(target: SocketAddr) -> Self {
        let (fault, cuts) = (watch::Sender::new(Fault::None), watch::Sender::new(0));
        let [connections, there, back, held_back, settled] = [0; 5].map(AtomicU64::new);
        let shared = Shared { target, fault, cuts, connections, there, back, held_back, settled };
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

    /// Where to connect to instead of the engine.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn set(&self, fault: Fault) {
        self.shared.fault.send_replace(fault);
    }

    /// Resets all connections that there are; new ones may be made.
    pub(crate) fn cut_all(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Whether a request has been held back, and each one that was is settled: the engine has answered it when it came at
    /// last, or has closed its connection before.
    pub(crate) fn held_back_are_settled(&self) -> bool {
        let held_back = self.shared.held_back.load(Ordering::SeqCst);
        held_back > 0 && held_back == self.shared.settled.load(Ordering::SeqCst)
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
    // Dropped with this: no connection outlives the proxy.
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
    let line = Line::default();
    let end = tokio::select! {
        end = pass(Way::There, from_client, to_server, &shared, &line) => end,
        end = pass(Way::Back, from_server, to_client, &shared, &line) => end,
        _ = cuts.changed() => End::Reset,
    };
    line.settle(&shared);
    if end == End::Reset {
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

/// One connection: whether a request on it is held back and not settled.
#[derive(Default)]
struct Line {
    holds_back: AtomicBool,
    answered: tokio::sync::Notify,
}

impl Line {
    fn settle(&self, shared: &Shared) {
        if self.holds_back.swap(false, Ordering::SeqCst) {
            shared.settled.fetch_add(1, Ordering::SeqCst);
            self.answered.notify_one();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    There,
    Back,
}

#[derive(PartialEq, Eq)]
enum End {
    Closed,
    Reset,
}

async fn pass(way: Way, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, shared: &Shared, line: &Line) -> End {
    let mut fault = shared.fault.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return End::Closed,
            Ok(length) => length,
        };
        if way == Way::Back {
            line.settle(shared);
        }
        if fault.wait_for(|fault| *fault != Fault::BlackHole).await.is_err() {
            return End::Closed;
        }
        let now = *fault.borrow_and_update();
        match now {
            Fault::None | Fault::BlackHole => {}
            Fault::Delay(delay) => tokio::time::sleep(delay).await,
            Fault::Reset => return End::Reset,
            Fault::DropReplies(_) if way == Way::There => {}
            Fault::HoldBack(_) if way == Way::Back => {}
            Fault::HoldBack(time) => {
                shared.fault.send_replace(Fault::None);
                line.holds_back.store(true, Ordering::SeqCst);
                shared.held_back.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(time).await;
                if to.write_all(&buffer[..length]).await.is_err() {
                    return End::Closed;
                }
                // Its sender may be gone by now: the connection must not end before the engine has answered.
                line.answered.notified().await;
                continue;
            }
            Fault::DropReplies(more) => {
                let next = if more > 1 { Fault::DropReplies(more - 1) } else { Fault::None };
                shared.fault.send_replace(next);
                return End::Reset;
            }
        }
        // Counted first: whoever has got it finds it counted.
        let passed = if way == Way::There { &shared.there } else { &shared.back };
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

    /// Answers every byte with the next one, and says what it was asked.
    fn engine() -> (SocketAddr, mpsc::Receiver<u8>) {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, hears) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, asked) = (stream.unwrap(), asked.clone());
                std::thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() && asked.send(byte[0]).is_ok() {
                        byte[0] += 1;
                        if stream.write_all(&byte).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        (address, hears)
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    fn ask(stream: &mut TcpStream, byte: u8) -> Result<u8, ErrorKind> {
        stream.write_all(&[byte]).map_err(|error| error.kind())?;
        let mut answer = [0];
        stream.read_exact(&mut answer).map_err(|error| error.kind())?;
        Ok(answer[0])
    }

    #[test]
    fn what_is_said_passes_and_is_counted() {
        let (engine, _hears) = engine();
        let proxy = Proxy::before(engine);
        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream, 1), Ok(2));
        assert_eq!(ask(&mut connect(&proxy), 5), Ok(6));
        assert_eq!(proxy.counts(), Counts { connections: 2, there: 2, back: 2 });
    }

    #[test]
    fn a_delay_is_felt_each_way() {
        let (engine, _hears) = engine();
        let proxy = Proxy::before(engine);
        proxy.set(Fault::Delay(Duration::from_millis(30)));
        let start = Instant::now();
        assert_eq!(ask(&mut connect(&proxy), 1), Ok(2));
        assert!(start.elapsed() >= Duration::from_millis(60));
    }

    #[test]
    fn what_falls_into_a_black_hole_arrives_when_it_closes() {
        let (engine, hears) = engine();
        let proxy = Proxy::before(engine);
        let mut stream = connect(&proxy);
        proxy.set(Fault::BlackHole);
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert_eq!(ask(&mut stream, 1), Err(ErrorKind::WouldBlock));
        assert!(hears.try_recv().is_err());
        proxy.set(Fault::None);
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(ask(&mut stream, 7), Ok(2));
    }

    #[test]
    fn a_reply_is_dropped_after_the_request_was_passed_on() {
        let (engine, hears) = engine();
        let proxy = Proxy::before(engine);
        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream, 1), Ok(2));
        proxy.set(Fault::DropReplies(1));
        assert_eq!(ask(&mut stream, 3), Err(ErrorKind::ConnectionReset));
        assert_eq!(hears.try_iter().collect::<Vec<_>>(), [1, 3]);
        assert_eq!(ask(&mut connect(&proxy), 5), Ok(6));
    }

    #[test]
    fn one_request_is_held_back_and_the_others_pass() {
        let (engine, hears) = engine();
        let proxy = Proxy::before(engine);
        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream, 1), Ok(2));
        assert!(!proxy.held_back_are_settled());
        proxy.set(Fault::HoldBack(Duration::from_millis(200)));
        stream.write_all(&[3]).unwrap();
        while proxy.shared.held_back.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        drop(stream);
        assert_eq!(ask(&mut connect(&proxy), 5), Ok(6));
        let start = Instant::now();
        while !proxy.held_back_are_settled() {
            assert!(start.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        assert_eq!(hears.try_iter().collect::<Vec<_>>(), [1, 5, 3]);
    }

    #[test]
    fn connections_are_reset() {
        let (engine, _hears) = engine();
        let proxy = Proxy::before(engine);
        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream, 1), Ok(2));
        proxy.cut_all();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(ask(&mut connect(&proxy), 1), Ok(2));
        proxy.set(Fault::Reset);
        assert_eq!(ask(&mut connect(&proxy), 1), Err(ErrorKind::ConnectionReset));
    }

    #[test]
    fn nobody_listens_when_the_proxy_is_dropped() {
        let (engine, _hears) = engine();
        let proxy = Proxy::before(engine);
        let (address, mut stream) = (proxy.address(), connect(&proxy));
        assert_eq!(ask(&mut stream, 1), Ok(2));
        drop(proxy);
        assert!(TcpStream::connect(address).is_err());
        assert!(ask(&mut stream, 1).is_err());
    }
}
