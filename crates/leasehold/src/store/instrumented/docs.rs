//! Documents of an instrumented store.

use std::time::Duration;

use async_trait::async_trait;

use super::op::Op;
use super::store::InstrumentedStore;
use crate::Result;
use crate::store::{
    Capabilities, Cursor, Document, DocumentStore, HealthCheck, NewDocument, Page, PutIf, Time,
};

impl InstrumentedStore {
    fn inner_docs(&self) -> &dyn DocumentStore {
        self.store.documents().expect("only a store that has documents is asked for them")
    }
}

#[async_trait]
impl DocumentStore for InstrumentedStore {
    fn capabilities(&self) -> Capabilities {
        self.inner_docs().capabilities()
    }

    fn url(&self) -> String {
        self.inner_docs().url()
    }

    async fn get(&self, key: &str) -> Result<Option<Document>> {
        self.timed(Op::DocGet, self.inner_docs().get(key)).await
    }

    async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Document>>> {
        self.timed(Op::DocGet, self.inner_docs().get_all(keys)).await
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, draft: NewDocument) -> Result<PutIf> {
        let put = self.timed(Op::DocPut, self.inner_docs().put_if(key, expected, draft)).await?;
        self.counters.doc_version_conflicts.add(matches!(put, PutIf::Conflict(_)).into());
        Ok(put)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        self.timed(Op::DocList, self.inner_docs().list(prefix, after, limit)).await
    }

    async fn time(&self) -> Result<Time> {
        self.timed(Op::DocTime, self.inner_docs().time()).await
    }

    fn reads_may_be_old(&self) -> bool {
        self.inner_docs().reads_may_be_old()
    }

    fn call_timeout(&self) -> Duration {
        self.inner_docs().call_timeout()
    }

    fn batch(&self) -> u64 {
        self.inner_docs().batch()
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        self.inner_docs().check_health().await
    }
}
