//! The engine as a whole.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::desk::Desk;
use super::docs::HttpDocs;
use super::examine;
use super::link::Link;
use super::locks::HttpLocks;
use super::options::HttpOptions;
use super::tasks::HttpTasks;
use super::wakes::Wakes;
use crate::Result;
use crate::model::{Ttl, WorkerId};
use crate::store::background::Background;
use crate::store::clock::new_id;
use crate::store::protocol::{Hello, WorkerTag};
use crate::store::{
    Abilities, DocStore, Finding, Hosts, LockStore, OnNotice, Recipient, Store, Subscription, TaskStore,
};

/// The way to the server and back takes its time.
const SHORTEST_TTL: Ttl = Ttl::from_millis(200);
/// Nobody looks more often than this: a wake-up is on its way.
const SHORTEST_POLL: Duration = Duration::from_millis(250);

/// The store of a leasehold server.
#[derive(Debug)]
pub struct HttpStore {
    desk: Arc<Desk>,
    abilities: Abilities,
    worker_tag: Option<WorkerTag>,
    locks: HttpLocks,
    tasks: Option<HttpTasks>,
    docs: Option<HttpDocs>,
}

impl HttpStore {
    /// Asks the server what it can do.
    pub async fn connect(options: HttpOptions) -> Result<Self> {
        let background = Background::start("leasehold-http")?;
        let desk = Arc::new(Desk::new(background, Arc::new(Link::new(options)?)));
        let hello = desk.hello().await?;
        let abilities = abilities(&hello);
        let home = desk.background.handle().clone();
        let wakes = Arc::new(Wakes::new(desk.link.clone(), home, abilities.poll));
        Ok(Self {
            locks: HttpLocks {
                desk: desk.clone(),
                wakes: wakes.clone(),
                peeks: hello.peeks,
                forgets: hello.forgets_locks,
            },
            tasks: hello.tasks.then(|| HttpTasks { desk: desk.clone(), wakes }),
            docs: hello.docs.then(|| HttpDocs { desk: desk.clone(), abilities: abilities.clone() }),
            worker_tag: hello.worker_tag,
            abilities,
            desk,
        })
    }
}

fn abilities(hello: &Hello) -> Abilities {
    Abilities {
        engine: "http",
        hosts: Hosts::Many,
        min_ttl: hello.min_ttl.max(SHORTEST_TTL),
        poll: Duration::from_millis(hello.poll_millis).max(SHORTEST_POLL),
        wakes: hello.wakes,
        sees_the_dead: false,
        // It outlives this process; whether it outlives the server, `leasehold doctor` tells.
        lasting: true,
        shares: hello.shares,
        queues: hello.queues,
        forgets_locks: hello.forgets_locks,
        grace: Duration::from_millis(hello.grace_millis),
        ttl: hello.ttl.max(SHORTEST_TTL),
        tasks: hello.task_abilities,
    }
}

#[async_trait]
impl Store for HttpStore {
    fn abilities(&self) -> Abilities {
        self.abilities.clone()
    }

    fn url(&self) -> String {
        self.desk.link.place().to_owned()
    }

    fn locks(&self) -> &dyn LockStore {
        &self.locks
    }

    fn tasks(&self) -> Option<&dyn TaskStore> {
        self.tasks.as_ref().map(|tasks| tasks as &dyn TaskStore)
    }

    fn docs(&self) -> Option<&dyn DocStore> {
        self.docs.as_ref().map(|docs| docs as &dyn DocStore)
    }

    fn new_worker_id(&self) -> WorkerId {
        let id = WorkerId::from_uuid(new_id());
        self.worker_tag.map_or(id, |tag| tag.put_on(id))
    }

    fn subscribe(&self, to: Recipient, on_notice: OnNotice) -> Subscription {
        self.locks.wakes.subscribe(to, on_notice)
    }

    async fn notify(&self, _: &[Recipient]) {
        // The server has done so with the operation.
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        Ok(examine::findings(&self.desk.hello().await?, &self.desk.link.options))
    }
}
