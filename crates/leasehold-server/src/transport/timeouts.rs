//! Timeouts of one connection: for the head of a request, for the idle time between two requests,
//! and for responses that the client does not read.
//!
//! hyper has one read timeout, which starts when hyper begins to wait for the next request. That
//! timeout would either close connections that clients keep for reuse, or give a slow head as much
//! time as an idle connection. Therefore the stream of the connection enforces the timeouts: the
//! stream sees each read and write, and [`RequestPhase`] marks where a request begins and ends.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    /// Maximum time from the first byte of a request to the end of its head. For the first request the timer
    /// starts with the connection.
    pub(crate) head: Duration,
    /// Maximum time from the end of a response to the first byte of the next request.
    pub(crate) idle: Duration,
    /// Maximum time during which the client reads no byte of a response.
    pub(crate) write: Duration,
}

/// Request phase of a connection. Shared by its stream, its service and the body of its response.
#[derive(Debug, Clone)]
pub(crate) struct RequestPhase(Arc<AtomicU8>);

/// The connection waits for the head of a request; the connection is new or part of the head has
/// arrived.
const HEAD: u8 = 0;
/// The service handles the request, or its response is being sent.
const REQUEST: u8 = 1;
/// The response is complete and no byte of the next request has arrived.
const IDLE: u8 = 2;

impl RequestPhase {
    fn new() -> Self {
        Self(Arc::new(AtomicU8::new(HEAD)))
    }

    pub(crate) fn begin_request(&self) {
        self.0.store(REQUEST, Ordering::Relaxed);
    }

    /// Wraps the body of the response: the request ends when hyper has consumed the body or drops it.
    pub(crate) fn until_sent<B>(&self, body: B) -> Answered<B> {
        Answered { body, phase: self.clone() }
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, phase: u8) {
        self.0.store(phase, Ordering::Relaxed);
    }
}

/// Body of a response; dropping it ends the request.
pub(crate) struct Answered<B> {
    body: B,
    phase: RequestPhase,
}

impl<B: Body + Unpin> Body for Answered<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Answered<B> {
    fn drop(&mut self) {
        self.phase.set(IDLE);
    }
}

/// Stream that reports end of file when the client exceeds the head or idle timeout, and whose
/// writes fail when the client reads nothing for the write timeout.
pub(crate) struct Timed<S> {
    stream: S,
    limits: Timeouts,
    phase: RequestPhase,
    /// The phase that `deadline` belongs to.
    reading_for: Option<u8>,
    deadline: Instant,
    /// Timer that elapses at the deadline or earlier. It is set again only when it has elapsed or is too
    /// late: two changes of the timer for each request would cost more than an occasional early timeout.
    reading: Pin<Box<Sleep>>,
    /// Timer that runs while a write is pending because the client does not read.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Timed<S> {
    pub(crate) fn new(stream: S, timeouts: Timeouts) -> Self {
        let reading = Box::pin(sleep(timeouts.head));
        let deadline = reading.deadline();
        Self {
            stream,
            limits: timeouts,
            phase: RequestPhase::new(),
            reading_for: Some(HEAD),
            deadline,
            reading,
            stalled: None,
        }
    }

    pub(crate) fn phase(&self) -> RequestPhase {
        self.phase.clone()
    }

    /// Starts the timer of this phase unless that timer is running.
    fn time(&mut self, phase: u8) {
        if self.reading_for != Some(phase) {
            let limit = if phase == IDLE { self.limits.idle } else { self.limits.head };
            self.deadline = Instant::now() + limit;
            self.reading_for = Some(phase);
            if self.reading.deadline() > self.deadline {
                self.reading.as_mut().reset(self.deadline);
            }
        }
    }

    /// Returns when the deadline has passed.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.reading.as_mut().poll(cx));
            if self.reading.deadline() >= self.deadline {
                return Poll::Ready(());
            }
            self.reading.as_mut().reset(self.deadline);
        }
    }

    /// Restarts the idle timer: the response is still being sent, so the client cannot send the
    /// next request yet.
    fn postpone_idle<T>(&mut self, written: &Poll<T>) {
        if written.is_ready() && self.reading_for == Some(IDLE) {
            self.reading_for = None;
        }
    }

    /// Returns the result of a write, or an error if the write has been pending for too long.
    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.limits.write;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its responses")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let phase = self.phase.get();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        match (phase, read.is_ready()) {
            (REQUEST, _) => self.reading_for = None,
            (IDLE, true) => {
                self.phase.set(HEAD);
                self.reading_for = None;
                self.time(HEAD);
            }
            (_, true) => {}
            (_, false) => {
                self.time(phase);
                ready!(self.poll_deadline(cx));
                // Equivalent to the client closing the connection: hyper closes it without an error.
                return Poll::Ready(Ok(()));
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.postpone_idle(&written);
        self.watch(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watch(cx, ended)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.postpone_idle(&written);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const SHORT: Duration = Duration::from_millis(500);
    const LONG: Duration = Duration::from_secs(2);

    fn timed(timeouts: Timeouts, buffer: usize) -> (Timed<tokio::io::DuplexStream>, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(buffer);
        (Timed::new(ours, timeouts), theirs)
    }

    #[tokio::test]
    async fn a_write_fails_if_the_client_stops_reading_but_not_if_it_reads_slowly() {
        let (mut stream, mut theirs) = timed(Timeouts { head: LONG, idle: LONG, write: LONG }, 10);
        let slow = tokio::spawn(async move {
            let mut read = [0; 10];
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_millis(700)).await;
                theirs.read_exact(&mut read).await.unwrap();
            }
            theirs
        });
        stream.write_all(&[7; 50]).await.unwrap();
        let _theirs = slow.await.unwrap();
        let error = stream.write_all(&[7; 50]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    /// Reads one byte, or `None` at the end of the stream, and returns the elapsed time.
    async fn read(stream: &mut Timed<tokio::io::DuplexStream>) -> (Option<u8>, Duration) {
        let (mut byte, begun) = ([0], Instant::now());
        let read = stream.read(&mut byte).await.unwrap();
        ((read > 0).then_some(byte[0]), begun.elapsed())
    }

    #[tokio::test]
    async fn a_new_connection_has_the_head_timeout_and_an_idle_one_the_idle_timeout() {
        let timeouts = Timeouts { head: SHORT, idle: LONG, write: LONG };
        let (mut stream, theirs) = timed(timeouts, 10);
        let (byte, took) = read(&mut stream).await;
        assert!(byte.is_none() && took >= SHORT && took < LONG, "{took:?}");
        drop(theirs);

        let (mut stream, mut theirs) = timed(timeouts, 10);
        let phase = stream.phase();
        phase.begin_request();
        let nothing = tokio::time::timeout(2 * SHORT, read(&mut stream)).await;
        assert!(nothing.is_err(), "a request in progress has no timeout of reading");
        drop(phase.until_sent(axum::body::Body::empty()));
        let late = tokio::time::timeout(2 * SHORT, read(&mut stream)).await;
        assert!(late.is_err(), "an idle connection has more time than a head");
        theirs.write_all(b"G").await.unwrap();
        assert_eq!(read(&mut stream).await.0, Some(b'G'));
        let (byte, took) = read(&mut stream).await;
        assert!(byte.is_none() && took >= SHORT / 2 && took < LONG, "{took:?}");
    }

    #[tokio::test]
    async fn an_idle_connection_ends() {
        let (mut stream, _theirs) = timed(Timeouts { head: LONG, idle: SHORT, write: LONG }, 10);
        drop(stream.phase().until_sent(axum::body::Body::empty()));
        // Part of the response is written late: the idle timer starts after it.
        assert!(tokio::time::timeout(SHORT / 2, read(&mut stream)).await.is_err());
        stream.write_all(b"x").await.unwrap();
        let (byte, took) = read(&mut stream).await;
        assert!(byte.is_none() && took >= SHORT && took < LONG, "{took:?}");
    }

    #[tokio::test]
    async fn bytes_of_a_head_do_not_prolong_its_time() {
        let (mut stream, mut theirs) = timed(Timeouts { head: SHORT, idle: LONG, write: LONG }, 10);
        let drip = tokio::spawn(async move {
            while theirs.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let begun = Instant::now();
        while read(&mut stream).await.0.is_some() {}
        assert!(begun.elapsed() >= SHORT && begun.elapsed() < LONG, "{:?}", begun.elapsed());
        drop(stream);
        drip.await.unwrap();
    }
}
