//! Server for one test on a free port of this machine, and a client for it.

use std::path::Path;

use leasehold::Leasehold;
use leasehold_server::config::Settings;
use leasehold_server::{Access, Limits, Listening, Server, listen};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::Value;

/// Listening server and its client.
pub(crate) struct TestServer {
    pub(crate) leasehold: Leasehold,
    pub(crate) base: String,
    client: Client,
    token: Option<String>,
    listening: Listening,
    /// Folder of the SQLite file, if the store has one.
    folder: Option<tempfile::TempDir>,
    pub(crate) server: Server,
}

/// Response: status, headers and body.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Value,
}

impl TestServer {
    /// Starts an open server over an empty store in memory.
    pub(crate) async fn open() -> Self {
        Self::over(Leasehold::connect("memory:").await.unwrap(), Access::Open).await
    }

    /// Starts an open server over each store that needs no external service: memory and SQLite.
    pub(crate) async fn each() -> [Self; 2] {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("store.db").display());
        let file = Self::over(Leasehold::connect(&url).await.unwrap(), Access::Open).await;
        [Self::open().await, Self { folder: Some(folder), ..file }]
    }

    /// Starts a server over this store.
    pub(crate) async fn over(leasehold: Leasehold, access: Access) -> Self {
        Self::with(leasehold, access, Limits::default()).await
    }

    /// Starts a server with these limits.
    pub(crate) async fn with(leasehold: Leasehold, access: Access, limits: Limits) -> Self {
        Self::serve(Server::builder(leasehold.clone()).access(access).limits(limits).build(), leasehold).await
    }

    /// Starts this server; `leasehold` is its store.
    pub(crate) async fn serve(server: Server, leasehold: Leasehold) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listening = listen(&server, listener).unwrap();
        let base = format!("http://{}", listening.address());
        Self { leasehold, base, client: client(), token: None, listening, folder: None, server }
    }

    /// Starts a server with the settings of a `leasehold.toml`.
    pub(crate) async fn configured(leasehold: Leasehold, access: Access, toml: &str) -> Self {
        let settings = Settings::parse(Path::new("leasehold.toml"), toml).unwrap();
        let server = Server::builder(leasehold.clone())
            .access(access)
            .limits(settings.limits)
            .workflows(settings.workflows)
            .triggers(settings.triggers)
            .build();
        Self::serve(server, leasehold).await
    }

    /// Sets the token of all further requests.
    pub(crate) fn use_token(&mut self, token: &str) {
        self.token = Some(token.to_owned());
    }

    /// Returns a request builder.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        Reply::of(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        Reply::of(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn delete(&self, path: &str, body: &Value) -> Reply {
        Reply::of(self.request(Method::DELETE, path).json(body)).await
    }

    /// Returns the status of a lock.
    pub(crate) async fn get_lock(&self, name: &str) -> Value {
        self.get(&format!("/api/v1/locks/{name}")).await.body
    }

    /// Polls a lock until the condition holds.
    pub(crate) async fn wait_for_lock(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..2_000 {
            let lock = self.get_lock(name).await;
            if wanted(&lock) {
                return lock;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("lock {name} does not become as wanted: {}", self.get_lock(name).await)
    }

    /// Polls a lock until it has this number of waiters.
    pub(crate) async fn wait_for_waiters(&self, name: &str, count: usize) -> Value {
        self.wait_for_lock(name, |lock| lock["waiters"].as_array().unwrap().len() == count).await
    }

    /// Stops the server and returns the folder of its store.
    pub(crate) async fn stop(self) -> Option<tempfile::TempDir> {
        self.listening.stop().await;
        self.folder
    }
}

impl Reply {
    /// Sends the request and reads the response.
    pub(crate) async fn of(request: RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Self { status, headers, body }
    }

    /// Returns the code of a problem; panics if the response is not a problem.
    pub(crate) fn code(&self) -> &str {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{}", self.body);
        assert_eq!(self.body["success"], false);
        assert_eq!(self.body["status"], self.status);
        self.body["code"].as_str().unwrap()
    }
}

/// Creates a client. It requires a crypto provider, even for plain HTTP, if any part of this
/// program is built with TLS.
pub(crate) fn client() -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::new()
}
