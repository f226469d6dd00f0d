//! HTTP engine: connects to a server and implements [`Store`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::calls::{HttpDocs, HttpLocks, HttpTasks};
use super::client::HttpClient;
use super::connection::{Connection, HttpError};
use super::options::HttpOptions;
use super::subscriber::Subscriber;
use crate::Result;
use crate::model::{Ttl, WorkerId};
use crate::store::background::Background;
use crate::store::clock::new_id;
use crate::store::protocol::{Hello, VERSION, WorkerTag};
use crate::store::support::connection::first_connection;
use crate::store::{
    Capabilities, DocumentStore, HealthCheck, Hosts, LockStore, OnNotice, Recipient, Store, Subscription,
    TaskStore,
};

/// Minimum TTL, because of the round trip to the server.
const MIN_TTL: Ttl = Ttl::from_millis(200);
/// Minimum poll interval: wake-ups arrive in between.
const MIN_POLL: Duration = Duration::from_millis(250);

/// Store of a leasehold server.
#[derive(Debug)]
pub struct HttpStore {
    client: Arc<HttpClient>,
    capabilities: Capabilities,
    worker_tag: Option<WorkerTag>,
    locks: HttpLocks,
    tasks: Option<HttpTasks>,
    docs: Option<HttpDocs>,
}

impl HttpStore {
    /// Connects to a server, and requests its capabilities.
    pub async fn connect(options: HttpOptions) -> Result<Self> {
        let background = Background::start("leasehold-http")?;
        let client = Arc::new(HttpClient::new(background, Arc::new(Connection::new(options)?)));
        let timed_out = || HttpError::TimedOut.explain(client.connection.display_url());
        let hello = first_connection::open(|| client.hello(), timed_out).await?;
        let capabilities = capabilities(&hello);
        let runtime = client.background.handle().clone();
        let subscriber = Arc::new(Subscriber::new(client.connection.clone(), runtime, capabilities.poll));
        Ok(Self {
            locks: HttpLocks {
                client: client.clone(),
                subscriber: subscriber.clone(),
                supports_forget: hello.forgets_locks,
            },
            tasks: hello.tasks.then(|| HttpTasks { client: client.clone(), subscriber }),
            docs: hello.docs.then(|| HttpDocs {
                client: client.clone(),
                capabilities: capabilities.clone(),
                reads_may_be_old: hello.doc_reads_may_be_old,
            }),
            worker_tag: hello.worker_tag,
            capabilities,
            client,
        })
    }
}

fn capabilities(hello: &Hello) -> Capabilities {
    Capabilities {
        engine: "http",
        hosts: Hosts::Many,
        min_ttl: hello.min_ttl.max(MIN_TTL),
        poll: Duration::from_millis(hello.poll_millis).max(MIN_POLL),
        push_notifications: hello.push_notifications,
        detects_dead_processes: false,
        // The data survives this process; whether it survives the server is reported by `leasehold
        // doctor`.
        persistent: true,
        shared_locks: hello.shared_locks,
        queues: hello.queues,
        forgets_locks: hello.forgets_locks,
        clock_uncertainty: Duration::from_millis(hello.clock_uncertainty_millis),
        ttl: hello.ttl.max(MIN_TTL),
        tasks: hello.task_capabilities,
    }
}

#[async_trait]
impl Store for HttpStore {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn url(&self) -> String {
        self.client.connection.display_url().to_owned()
    }

    fn locks(&self) -> &dyn LockStore {
        &self.locks
    }

    fn tasks(&self) -> Option<&dyn TaskStore> {
        self.tasks.as_ref().map(|tasks| tasks as &dyn TaskStore)
    }

    fn documents(&self) -> Option<&dyn DocumentStore> {
        self.docs.as_ref().map(|docs| docs as &dyn DocumentStore)
    }

    fn new_worker_id(&self) -> WorkerId {
        let id = WorkerId::from_uuid(new_id());
        self.worker_tag.map_or(id, |tag| tag.put_on(id))
    }

    fn subscribe(&self, to: Recipient, on_notice: OnNotice) -> Subscription {
        self.locks.subscriber.subscribe(to, on_notice)
    }

    async fn notify(&self, _: &[Recipient]) {
        // The server sends the notices as part of the operation.
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        Ok(check_health(&self.client.hello().await?, &self.client.connection.options))
    }
}

fn check_health(hello: &Hello, options: &HttpOptions) -> Vec<HealthCheck> {
    let ours = env!("CARGO_PKG_VERSION");
    let server = format!("leasehold {}, protocol {VERSION}; this client is {ours}", hello.version);
    let tasks = if hello.tasks { "with tasks" } else { "without tasks" };
    let mut found = vec![
        HealthCheck::ok("server", server),
        HealthCheck::ok("its engine", format!("{}, {tasks}", hello.engine)),
    ];
    if !hello.persistent {
        let detail = format!("{} loses all data when the server stops", hello.engine);
        let hint = "give the server a persistent store, such as sqlite:";
        found.push(HealthCheck::issue("its memory", detail, "HTTP_FORGETS", hint));
    }
    if !options.tls && !options.local {
        let detail = "requests can be read and changed on the network, including the token";
        found.push(HealthCheck::issue("encryption", detail, "HTTP_NO_TLS", "write https:"));
    }
    found
}
