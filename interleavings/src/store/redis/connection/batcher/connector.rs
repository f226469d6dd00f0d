//! Simulated connection: a command is handed over when it is sent, executed later, and answered after
//! that; or the connection breaks.

use std::sync::Arc;

use redis::{Cmd, RedisError, RedisResult, Value};
use shuttle::future::yield_now;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;

/// Keys of the records of all operations that were handed over, in order.
pub(super) type Sent = Arc<Mutex<Vec<String>>>;

#[derive(Clone)]
pub(crate) struct Connection(pub(super) Sent);

pub(crate) struct Request<'a>(&'a Cmd);

impl<'a> From<&'a Cmd> for Request<'a> {
    fn from(cmd: &'a Cmd) -> Self {
        Self(cmd)
    }
}

impl Connection {
    pub(crate) async fn send(&self, request: Request<'_>) -> RedisResult<Value> {
        let keys: Vec<String> = request.0.args_iter().filter_map(|argument| record(&argument)).collect();
        let count = keys.len();
        self.0.lock().expect("no panic").extend(keys);
        yield_now().await;
        match thread_rng().gen_range(0..8) {
            0 => Err(RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe))),
            _ => Ok(Value::Array(vec![Value::Okay; count])),
        }
    }
}

/// Returns the key of a record, which begins with "record ".
fn record(argument: &redis::Arg<&[u8]>) -> Option<String> {
    match argument {
        redis::Arg::Simple(text) if text.starts_with(b"record ") => {
            Some(String::from_utf8_lossy(text).into_owned())
        }
        _ => None,
    }
}
