//! Several operations in one call: what many callers ask for at the same time costs the server far less together.
//!
//! Whoever comes lays its operation into a queue and waits. Somebody on the thread of the far line takes what lies there
//! and sends it as one command; what comes meanwhile goes with the next. An operation that is not simple enough for that
//! gets no answer, and its caller sends it alone.
//!
//! Order: what is taken from the queue is on its way within the same step, so a call that is dropped is either still in
//! the queue, and then it is never sent; or whatever follows it on the far line follows it on the server too.

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

/// So many operations go into one call: it must not keep others from the server for long.
const MOST: usize = 64;
/// So many calls are under way at once. While one is worked on, the next is being filled. Whether two would be faster
/// could not be told from the noise.
const SENDERS: usize = 1;

/// An operation, as `many.lua` takes it.
pub(super) struct Part {
    /// The keys of the lock's record, and of its bucket: names, due times, events, floor.
    pub(super) record: String,
    pub(super) bucket: [String; 4],
    /// The operation, the name and what it needs.
    pub(super) words: [Vec<u8>; 5],
    /// The time, if it is not the server's, and how many events to keep: the same for all that are sent together.
    pub(super) now: String,
    pub(super) bucket_events: u32,
}

/// So much one operation counts that had to be sent alone after all, beside one that had not…
const IN_VAIN: usize = 8;
/// …and from so many on it is not tried for a while: where all want the same lock, nothing is simple.
const TOO_MANY_IN_VAIN: usize = 64;

/// Operations that wait to be sent.
#[derive(Default)]
pub(super) struct Group {
    /// Rises with each operation that was sent in vain, and falls with every other.
    in_vain: AtomicUsize,
    queue: Mutex<Queue>,
    /// Held while parts are taken out of the queue and given to the connection.
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

/// A call that waits. Dropped without an answer, it is taken back, or remembered as one that may still take effect.
struct Call<'a> {
    link: &'a Link,
    lease: &'a LeaseId,
    number: u64,
    line: Arc<AtomicU64>,
    answered: bool,
}

impl Link {
    /// Sends an operation for this lease together with those of others. None: it has to be sent alone.
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
        // A sender that ended without a word leaves it open what became of it.
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
            // Once more, alone, after the broken line has been ended: as any other call. Or for the whole story of a refusal.
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
    /// Whoever sends ends here, and leaves nobody waiting.
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
            (None, 0) => {} // It was never sent.
            (None, number) => self.link.remember(self.lease, (Which::Far, number)),
        }
    }
}

/// Sends what is in the queue until it is empty.
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
            // Nothing that `many.lua` says: let each find out alone.
            reply => answer_all(parts, &reply.map(|_| Value::Nil)),
        }
    }
}

/// Whoever sends must not end without a word: nobody would send any more.
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

/// Sends one call, if there is anything to send, and waits for the answer.
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
        // The first poll gives it to the connection, whatever else this task has done in its turn.
        let mut sending: Sending =
            Box::pin(tokio::task::unconstrained(send(far.conn.clone(), command(&parts))));
        let first = sending.as_mut().poll(context).map(Some);
        batch = Some((parts, sending));
        first
    })
    .await?;
    batch.map(|(parts, _)| (parts, reply))
}

/// What `many.lua` reads.
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

/// Sends it. A server that has forgotten the script is told it again, without anything to do: whoever has gone away
/// meanwhile, and has perhaps taken back what it asked for, must not get it after that.
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
