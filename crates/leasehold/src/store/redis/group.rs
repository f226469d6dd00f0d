//! Batching of operations: concurrent operations of many callers cost the server far less in one
//! call.
//!
//! A caller puts its operation into a queue and waits. A sender on the thread of the far connection
//! takes the queued operations and sends them as one command; operations that arrive meanwhile go
//! with the next one. An operation that is not simple enough for a batch gets no answer, and its
//! caller sends it alone.
//!
//! Order: taking an operation from the queue and handing it to the connection is one step. So a
//! dropped call is either still in the queue, and then it is never sent; or every later command on
//! the far connection also follows it on the server.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};
use tokio::sync::oneshot;

use super::line::Conn;
use super::link::{Line, Link, Which, lock};
use super::scripts::MANY;
use crate::model::LeaseId;
use crate::store::repeat::Repeat;

/// Maximum number of operations in one call: it must not keep other clients from the server for
/// long.
const MOST: usize = 64;
/// Number of concurrent calls. While the server works on one, the next is being filled.
/// Measurements did not show whether two would be faster.
const SENDERS: usize = 1;

/// Operation in the form that `many.lua` takes.
pub(super) struct Part {
    /// Key of the lock's record; `bucket` has the keys of its bucket: names, due times, events,
    /// floor.
    pub(super) record: String,
    pub(super) bucket: [String; 4],
    /// Operation, name and the arguments.
    pub(super) words: [Vec<u8>; 5],
    /// Time, if it is not the server's, and maximum number of events: the same for all operations
    /// of a batch.
    pub(super) now: String,
    pub(super) bucket_events: u32,
}

/// Penalty for an operation that was batched but had to be sent alone after all; every further
/// attempt subtracts one.
const IN_VAIN: usize = 8;
/// Penalty from which batching is suspended for a while: where all callers want the same lock, no
/// operation is simple.
const TOO_MANY_IN_VAIN: usize = 64;

/// Operations that wait to be sent.
#[derive(Default)]
pub(super) struct Group {
    /// Current penalty: rises with each operation that was batched in vain, and falls with every
    /// other.
    in_vain: AtomicUsize,
    queue: Mutex<Queue>,
    /// Held while operations are taken out of the queue and handed to the connection.
    handing: Mutex<()>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    senders: usize,
    count: u64,
}

struct Waiting {
    number: u64,
    part: Part,
    line: Arc<AtomicU64>,
    reply: oneshot::Sender<RedisResult<Value>>,
}

/// Waiting call. If dropped without an answer, the operation is removed from the queue, or recorded
/// as one that may still take effect.
struct Call<'a> {
    link: &'a Link,
    lease: &'a LeaseId,
    number: u64,
    line: Arc<AtomicU64>,
    answered: bool,
}

impl Link {
    /// Sends an operation for this lease in a batch. Returns `None` if it must be sent alone.
    pub(super) async fn send_with_others(
        self: &Arc<Self>,
        lease: &LeaseId,
        part: Part,
        repeat: Repeat,
    ) -> Option<RedisResult<Value>> {
        if !self.group.is_worth_it() {
            return None;
        }
        let host = self.host()?;
        let _under_way = self.count();
        let (reply, answer) = oneshot::channel();
        let line = Arc::new(AtomicU64::new(0));
        let (number, start) = {
            let mut queue = lock(&self.group.queue);
            queue.count += 1;
            let number = queue.count;
            queue.waiting.push_back(Waiting { number, part, line: line.clone(), reply });
            let start = queue.senders < SENDERS;
            queue.senders += usize::from(start);
            (number, start)
        };
        let mut call = Call { link: self, lease, number, line, answered: false };
        if start {
            host.spawn(send_all(self.clone()));
        }
        // If the sender ended without an answer, the outcome is unknown.
        let Ok(answer) = answer.await else {
            let begun = call.line.load(Ordering::Relaxed) != 0;
            let gone = || Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into());
            return (begun && repeat == Repeat::Unsafe).then(gone);
        };
        match answer {
            Ok(Value::Nil) => {
                call.answered = true;
                self.group.in_vain.fetch_add(IN_VAIN, Ordering::Relaxed);
                None
            }
            Err(error) if error.is_timeout() || call.line.load(Ordering::Relaxed) == 0 => Some(Err(error)),
            Err(error) if repeat == Repeat::Unsafe && error.code().is_none() => Some(Err(error)),
            // Retried alone: after the broken connection has been ended, like any other call; or,
            // after a refusal, to get the complete error.
            Err(error) => {
                call.answered = error.code().is_some();
                None
            }
            reply => {
                call.answered = true;
                Some(reply)
            }
        }
    }
}

impl Group {
    /// Ends a sender and returns the queued operations, so that no caller waits forever.
    fn give_up(&self) -> VecDeque<Waiting> {
        let mut queue = lock(&self.queue);
        queue.senders -= 1;
        std::mem::take(&mut queue.waiting)
    }

    fn is_worth_it(&self) -> bool {
        let fall = |in_vain: usize| Some(in_vain.min(2 * TOO_MANY_IN_VAIN).saturating_sub(1));
        let in_vain = self.in_vain.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fall);
        in_vain.unwrap_or_default() < TOO_MANY_IN_VAIN
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.answered {
            self.link.forget(self.lease);
            return;
        }
        let _handing = lock(&self.link.group.handing);
        let mut queue = lock(&self.link.group.queue);
        let waits = queue.waiting.iter().position(|waiting| waiting.number == self.number);
        match (waits, self.line.load(Ordering::Relaxed)) {
            (Some(at), _) => drop(queue.waiting.remove(at)),
            (None, 0) => {} // Never sent.
            (None, number) => self.link.remember(self.lease, (Which::Far, number)),
        }
    }
}

/// Sends queued operations until the queue is empty.
async fn send_all(link: Arc<Link>) {
    let mut end = End { group: &link.group, good: false };
    loop {
        let far = match link.line(Which::Far).await {
            Ok(far) => far,
            Err(error) => {
                end.good = true;
                answer_all(link.group.give_up(), &Err(error));
                return;
            }
        };
        let Some((parts, reply)) = send_some(&link.group, &far).await else {
            end.good = true;
            return;
        };
        if let Err(error) = &reply {
            link.give_up_if_broken(Which::Far, &far, error);
        }
        match reply {
            Ok(Value::Array(answers)) if answers.len() == parts.len() => {
                for (waiting, answer) in parts.into_iter().zip(answers) {
                    let _ = waiting.reply.send(Ok(answer));
                }
            }
            // Not a reply of `many.lua`: each caller sends its operation alone.
            reply => answer_all(parts, &reply.map(|_| Value::Nil)),
        }
    }
}

/// Deregisters a sender that ends unexpectedly: otherwise no operation would be sent any more.
struct End<'a> {
    group: &'a Group,
    good: bool,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if !self.good {
            drop(self.group.give_up());
        }
    }
}

fn answer_all(parts: impl IntoIterator<Item = Waiting>, answer: &RedisResult<Value>) {
    for waiting in parts {
        let _ = waiting.reply.send(answer.clone());
    }
}

type Sending = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>;

/// Sends one batch, if the queue is not empty, and waits for the answer.
async fn send_some(group: &Group, far: &Line) -> Option<(Vec<Waiting>, RedisResult<Value>)> {
    let mut batch: Option<(Vec<Waiting>, Sending)> = None;
    let reply = poll_fn(|context| {
        if let Some((_, sending)) = &mut batch {
            return sending.as_mut().poll(context).map(Some);
        }
        let _handing = lock(&group.handing);
        let parts = {
            let mut queue = lock(&group.queue);
            let count = queue.waiting.len().min(MOST);
            if count == 0 {
                queue.senders -= 1;
                return Poll::Ready(None);
            }
            queue.waiting.drain(..count).collect::<Vec<_>>()
        };
        for waiting in &parts {
            waiting.line.store(far.number, Ordering::Relaxed);
        }
        // The first poll must hand the command to the connection, even if this task has used up its
        // budget.
        let mut sending: Sending =
            Box::pin(tokio::task::unconstrained(send(far.conn.clone(), command(&parts))));
        let first = sending.as_mut().poll(context).map(Some);
        batch = Some((parts, sending));
        first
    })
    .await?;
    batch.map(|(parts, _)| (parts, reply))
}

/// Builds the command that `many.lua` reads.
fn command(parts: &[Waiting]) -> Cmd {
    let size = parts.iter().map(|waiting| waiting.part.size()).sum::<usize>();
    let mut cmd = Cmd::with_capacity(5 + parts.len() * 10, 100 + size);
    cmd.arg("EVALSHA").arg(MANY.hash()).arg(parts.len() * 5);
    for Waiting { part, .. } in parts {
        cmd.arg(&part.record);
    }
    for Waiting { part, .. } in parts {
        cmd.arg(&part.bucket);
    }
    let first = parts.first().map(|waiting| &waiting.part);
    cmd.arg(first.map_or("", |part| &part.now)).arg(first.map_or(0, |part| part.bucket_events));
    for Waiting { part, .. } in parts {
        for word in &part.words {
            cmd.arg(word);
        }
    }
    cmd
}

impl Part {
    fn size(&self) -> usize {
        let keys: usize = self.bucket.iter().map(String::len).sum();
        self.record.len() + keys + self.words.iter().map(Vec::len).sum::<usize>()
    }
}

/// Sends a batch. If the server has forgotten the script, loads it again without operations: a
/// caller that has meanwhile been dropped, and may have withdrawn its request, must not be granted
/// the lock after that.
async fn send(conn: Conn, cmd: Cmd) -> RedisResult<Value> {
    let reply = conn.send((&cmd).into()).await;
    if let Err(error) = &reply
        && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
    {
        let told = conn.send((&*redis::cmd("EVAL").arg(MANY.text()).arg(0)).into()).await;
        if let Err(error) = told {
            tracing::debug!(%error, "operations cannot be sent together yet");
        }
    }
    reply
}
