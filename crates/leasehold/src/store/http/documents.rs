//! Documents: each call is one HTTP exchange.

use std::sync::Arc;

use async_trait::async_trait;

use super::client::HttpClient;
use crate::Result;
use crate::store::protocol::{DocCall, MOST_KEYS};
use crate::store::{Capabilities, Cursor, Document, DocumentStore, NewDocument, Page, PutIf, Time};

#[derive(Debug)]
pub(super) struct HttpDocs {
    pub(super) client: Arc<HttpClient>,
    pub(super) capabilities: Capabilities,
}

fn path(call: DocCall) -> String {
    format!("docs/{}", call.as_str())
}

#[async_trait]
impl DocumentStore for HttpDocs {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn url(&self) -> String {
        self.client.connection.display_url().to_owned()
    }

    async fn get(&self, key: &str) -> Result<Option<Document>> {
        let found: Vec<Option<Document>> =
            self.client.call(path(DocCall::Get), &([key],), DocCall::Get).await?;
        Ok(found.into_iter().next().flatten())
    }

    async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Document>>> {
        let mut found = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MOST_KEYS) {
            let some: Vec<Option<Document>> =
                self.client.call(path(DocCall::Get), &(keys,), DocCall::Get).await?;
            found.extend(some);
        }
        Ok(found)
    }

    /// Writes a document. The annotations are not sent: people inspect the engine of the server, not
    /// this client.
    async fn put_if(&self, key: &str, expected: Option<u64>, draft: NewDocument) -> Result<PutIf> {
        let arguments = (key, expected, draft.body, draft.keep);
        self.client.call(path(DocCall::PutIf), &arguments, DocCall::PutIf).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        self.client.call(path(DocCall::List), &(prefix, after, limit), DocCall::List).await
    }

    async fn time(&self) -> Result<Time> {
        self.client.call(path(DocCall::Time), &(), DocCall::Time).await
    }
}
