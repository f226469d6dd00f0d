//! The documents of a store that counts.

use async_trait::async_trait;

use super::op::Op;
use super::store::MeteredStore;
use crate::Result;
use crate::store::{Abilities, Cursor, Doc, DocStore, Draft, Finding, Page, PutIf, Time};

impl MeteredStore {
    fn inner_docs(&self) -> &dyn DocStore {
        self.store.docs().expect("only a store that has documents is asked for them")
    }
}

#[async_trait]
impl DocStore for MeteredStore {
    fn abilities(&self) -> Abilities {
        self.inner_docs().abilities()
    }

    fn url(&self) -> String {
        self.inner_docs().url()
    }

    async fn get(&self, key: &str) -> Result<Option<Doc>> {
        self.timed(Op::DocGet, self.inner_docs().get(key)).await
    }

    async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Doc>>> {
        self.timed(Op::DocGet, self.inner_docs().get_all(keys)).await
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, draft: Draft) -> Result<PutIf> {
        let put = self.timed(Op::DocPut, self.inner_docs().put_if(key, expected, draft)).await?;
        self.meter.doc_version_conflicts.add(matches!(put, PutIf::Clash(_)).into());
        Ok(put)
    }

    async fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Result<Page<(String, Doc)>> {
        self.timed(Op::DocList, self.inner_docs().list(prefix, after, limit)).await
    }

    async fn time(&self) -> Result<Time> {
        self.timed(Op::DocTime, self.inner_docs().time()).await
    }

    fn batch(&self) -> u64 {
        self.inner_docs().batch()
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner_docs().examine().await
    }
}
