//! Small versioned documents, stored in a table of their own.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::reads::after_all_with;
use super::tasks::{Link, Pool, Sql};
use super::trouble::Fail;
use crate::error::Result;
use crate::model::Timestamp;
use crate::store::lock_store::page_size;
use crate::store::protocol::DocCall;
use crate::store::{
    Capabilities, Cursor, DocStore, Document, NewDocument, Page, PutIf, RESERVED_PREFIX, Time,
};

/// Document store in a PostgreSQL database.
#[derive(Debug)]
pub(super) struct PostgresDocs {
    pool: Arc<Pool>,
    capabilities: Capabilities,
}

impl PostgresDocs {
    pub(super) const fn new(pool: Arc<Pool>, capabilities: Capabilities) -> Self {
        Self { pool, capabilities }
    }

    fn readable<T>(&self, read: Result<T, Fail>) -> Result<T> {
        read.map_err(|fail| fail.explain(&self.pool.gate().place))
    }
}

#[async_trait]
impl DocStore for PostgresDocs {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn url(&self) -> String {
        self.pool.gate().options.shown.clone()
    }

    async fn get(&self, key: &str) -> Result<Option<Document>> {
        let (key, now) = (key.to_owned(), self.pool.gate().now());
        let get = move |link: Arc<Link>| {
            let key = key.clone();
            async move { Ok(link.query(Sql::DocGet, &[&key, &now]).await?) }
        };
        let rows = self.pool.run(DocCall::Get, get).await?;
        self.readable(rows.first().map(|row| doc(row, 0)).transpose())
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, draft: NewDocument) -> Result<PutIf> {
        let wanted = Arc::new((key.to_owned(), draft.body));
        let expected = expected.map(|version| i64::try_from(version).unwrap_or(i64::MAX));
        let keep = draft.keep.map(|keep| i64::try_from(keep.as_micros()).unwrap_or(i64::MAX));
        let now = self.pool.gate().now();
        let put = move |link: Arc<Link>| {
            let wanted = wanted.clone();
            async move {
                let rows = link.query(Sql::DocPut, &[&wanted.0, &expected, &wanted.1, &keep, &now]).await?;
                if let Some(row) = rows.first() {
                    return Ok(PutIf::Written(version(row, 0)?));
                }
                let rows = link.query(Sql::DocGet, &[&wanted.0, &now]).await?;
                Ok(PutIf::Conflict(rows.first().map(|row| doc(row, 0)).transpose()?))
            }
        };
        self.pool.run(DocCall::PutIf, put).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        let after = after.map(|after| after.0).unwrap_or_default();
        let without_back_room = !prefix.starts_with(RESERVED_PREFIX);
        let wanted = Arc::new((after, prefix.to_owned(), after_all_with(prefix)));
        let (limit, now) = (page_size(limit), self.pool.gate().now());
        let list = move |link: Arc<Link>| {
            let wanted = wanted.clone();
            async move {
                let (after, prefix, end) = &*wanted;
                let limit = i64::from(limit);
                Ok(link.query(Sql::DocList, &[after, prefix, end, &without_back_room, &limit, &now]).await?)
            }
        };
        let rows = self.pool.run(DocCall::List, list).await?;
        let read = |row: &Row| Ok((row.try_get::<_, String>(0)?, doc(row, 1)?));
        let items: Vec<(String, Document)> = self.readable(rows.iter().map(read).collect())?;
        let next = items.last().filter(|_| items.len() == limit as usize).map(|(key, _)| Cursor(key.clone()));
        Ok(Page { items, next })
    }

    async fn time(&self) -> Result<Time> {
        let now = self.pool.gate().now();
        let ask = move |link: Arc<Link>| async move { Ok(link.query(Sql::Now, &[&now]).await?) };
        let rows = self.pool.run(DocCall::Time, ask).await?;
        let row = rows.first().ok_or_else(|| Fail::Unreadable("there is no time".into()));
        self.readable(row.and_then(|row| version(row, 0)))
            .map(|micros| Time::Exact(Timestamp::from_micros(micros)))
    }
}

fn doc(row: &Row, at: usize) -> Result<Document, Fail> {
    Ok(Document { version: version(row, at)?, body: row.try_get(at + 1)? })
}

fn version(row: &Row, at: usize) -> Result<u64, Fail> {
    u64::try_from(row.try_get::<_, i64>(at)?).map_err(|error| Fail::Unreadable(Box::new(error)))
}
