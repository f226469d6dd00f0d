//! Conformance suites over a server on memory and on SQLite, with two clients each.

use std::sync::Arc;

use leasehold::model::Timestamp;
use leasehold::store::memory::MemoryStore;
use leasehold::store::sqlite::{SqliteOptions, SqliteStore};
use leasehold::store::{Clock, Store};
use leasehold::testing::{Fixture, agrees_with_the_rules, tasks_agree_with_the_rules};

use super::support::{Served, open};

fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_000_000))
}

async fn through_a_server(engine: Arc<dyn Store>, clock: Clock, kept: impl Send + 'static) -> Fixture {
    let served = Served::over(engine);
    let (one, two) = (open(&served.url()).await, open(&served.url()).await);
    Fixture::new(one, two, clock, (served, kept))
}

mod memory {
    use super::*;

    pub(super) async fn fresh() -> Fixture {
        let clock = clock();
        through_a_server(Arc::new(MemoryStore::with_clock(clock.clone())), clock, ()).await
    }

    mod locks {
        leasehold::lock_conformance!(crate::store::suite::memory::fresh);
    }
    mod tasks {
        leasehold::task_conformance!(crate::store::suite::memory::fresh);
    }
    mod docs {
        leasehold::doc_conformance!(crate::store::suite::memory::fresh);
    }

    #[test]
    fn it_agrees_with_the_rules() {
        agrees_with_the_rules(48, fresh);
    }

    #[test]
    fn its_tasks_agree_with_the_rules() {
        tasks_agree_with_the_rules(48, fresh);
    }
}

mod sqlite {
    use super::*;

    pub(super) async fn fresh() -> Fixture {
        let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
        let mut options = SqliteOptions::new(folder.path().join("locks.db"));
        options.clock = Some(clock.clone());
        let engine = SqliteStore::open(options).await.unwrap();
        through_a_server(Arc::new(engine), clock, folder).await
    }

    mod locks {
        leasehold::lock_conformance!(crate::store::suite::sqlite::fresh);
    }
    mod tasks {
        leasehold::task_conformance!(crate::store::suite::sqlite::fresh);
    }
    mod docs {
        leasehold::doc_conformance!(crate::store::suite::sqlite::fresh);
    }

    #[test]
    fn it_agrees_with_the_rules() {
        agrees_with_the_rules(16, fresh);
    }

    #[test]
    fn its_tasks_agree_with_the_rules() {
        tasks_agree_with_the_rules(16, fresh);
    }
}
