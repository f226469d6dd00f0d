//! Small versioned documents: one script over a hash and its ordered keys. All are on one node of a
//! Cluster, because a list by prefix covers all of them.

use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use redis::{Cmd, Value};

use super::connection::Connections;
use super::error::unreadable;
use super::keys::prefix_end;
use super::options::RedisOptions;
use super::scripts::{Script, ScriptCall, script_time};
use crate::Result;
use crate::store::document_store::is_listed;
use crate::store::lock_store::page_size;
use crate::store::protocol::DocCall;
use crate::store::{Capabilities, Clock, Cursor, Document, DocumentStore, NewDocument, Page, PutIf, Time};

static DOCUMENTS: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("documents.lua")));

pub(super) struct Documents {
    connections: Arc<Connections>,
    keys: [String; 3],
    clock: Option<Clock>,
    capabilities: Capabilities,
}

impl Documents {
    pub(super) fn new(
        connections: Arc<Connections>,
        options: &RedisOptions,
        capabilities: Capabilities,
    ) -> Self {
        let keys = ["docs", "names", "until"].map(|key| format!("{}:{{d}}:{key}", options.prefix));
        Self { connections, keys, clock: options.clock.clone(), capabilities }
    }

    async fn run(&self, call: DocCall, with: impl Fn(&mut Cmd)) -> Result<Vec<Value>> {
        let now = script_time(self.clock.as_ref());
        let all = |cmd: &mut Cmd| {
            cmd.arg(3).arg(&self.keys).arg(&now);
            with(cmd);
        };
        match DOCUMENTS.run(&self.connections, ScriptCall::new(call), all).await? {
            Value::Array(parts) => Ok(parts),
            _ => Err(unreadable("the reply of a script")),
        }
    }
}

#[async_trait]
impl DocumentStore for Documents {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn url(&self) -> String {
        self.connections.display_url().to_owned()
    }

    async fn get(&self, key: &str) -> Result<Option<Document>> {
        Ok(self.get_all(&[key.to_owned()]).await?.remove(0))
    }

    async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Document>>> {
        let found = self.run(DocCall::Get, |cmd| _ = cmd.arg("get").arg(keys)).await?;
        if found.len() != keys.len() {
            return Err(unreadable("the reply of a script"));
        }
        found.iter().map(decode).collect()
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, document: NewDocument) -> Result<PutIf> {
        let expected = expected.map(|version| version.to_string()).unwrap_or_default();
        let keep = document.keep.map(|keep| keep.as_micros().to_string()).unwrap_or_default();
        let with = |cmd: &mut Cmd| _ = cmd.arg("put").arg(key).arg(&expected).arg(&keep).arg(&document.body);
        match self.run(DocCall::PutIf, with).await?.as_slice() {
            [Value::Int(-1), current] => decode(current).map(PutIf::Conflict),
            [Value::Int(version), _] => u64::try_from(*version)
                .map(PutIf::Written)
                .map_err(|_| unreadable("the version of a document")),
            _ => Err(unreadable("the reply of a script")),
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        let limit = page_size(limit) as usize;
        let mut from = after.map_or_else(|| format!("[{prefix}"), |after| format!("({}", after.0));
        let mut items = Vec::new();
        loop {
            let with = |cmd: &mut Cmd| _ = cmd.arg("list").arg(&from).arg(prefix_end(prefix)).arg(limit);
            let found = self.run(DocCall::List, with).await?;
            let last = found.len() < 2 * limit;
            for pair in found.chunks_exact(2) {
                let key: String = self.connections.read(Ok(pair[0].clone()))?;
                from = format!("({key}");
                if let Some(document) = decode(&pair[1])?.filter(|_| is_listed(&key, prefix)) {
                    items.push((key, document));
                }
                if items.len() == limit {
                    return Ok(Page::of(items, limit, |(key, _)| Cursor(key.clone())));
                }
            }
            if last {
                return Ok(Page { items, next: None });
            }
        }
    }

    async fn time(&self) -> Result<Time> {
        self.connections.now(self.clock.as_ref()).await.map(Time::Exact)
    }
}

/// Parses a document as the script stores it; an empty text means none.
fn decode(stored: &Value) -> Result<Option<Document>> {
    let Value::BulkString(stored) = stored else { return Err(unreadable("a document")) };
    if stored.is_empty() {
        return Ok(None);
    }
    let read = stored.split_first_chunk::<8>().and_then(|(version, rest)| {
        let body = String::from_utf8(rest.get(8..)?.to_vec()).ok()?;
        Some(Document { version: u64::from_be_bytes(*version), body })
    });
    read.map(Some).ok_or_else(|| unreadable("a document"))
}
