//! A server of one's own for each test, on a free port of this machine, and a client for it.

use std::path::Path;

use leasehold::Leasehold;
use leasehold_server::config::Settings;
use leasehold_server::{Access, Limits, Listening, Server, listen};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::Value;

/// A server that listens, and its client.
pub(crate) struct Lab {
    pub(crate) leasehold: Leasehold,
    pub(crate) base: String,
    client: Client,
    token: Option<String>,
    listening: Listening,
    /// Where its file is, if it has one.
    _folder: Option<tempfile::TempDir>,
    pub(crate) server: Server,
}

/// An answer: its status, its headers, its body.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Value,
}

impl Lab {
    /// Over an empty store in memory, open to this machine.
    pub(crate) async fn open() -> Self {
        Self::over(Leasehold::connect("memory:").await.unwrap(), Access::Open).await
    }

    /// Over each kind of store that needs nothing else: in memory, and in a file.
    pub(crate) async fn each() -> [Self; 2] {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("store.db").display());
        let file = Self::over(Leasehold::connect(&url).await.unwrap(), Access::Open).await;
        [Self::open().await, Self { _folder: Some(folder), ..file }]
    }

    /// Over this store.
    pub(crate) async fn over(leasehold: Leasehold, access: Access) -> Self {
        Self::with(leasehold, access, Limits::default()).await
    }

    /// With these limits.
    pub(crate) async fn with(leasehold: Leasehold, access: Access, limits: Limits) -> Self {
        Self::serve(Server::builder(leasehold.clone()).access(access).limits(limits).build(), leasehold).await
    }

    /// This server, which is over that store.
    pub(crate) async fn serve(server: Server, leasehold: Leasehold) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listening = listen(&server, listener).unwrap();
        let base = format!("http://{}", listening.address());
        Self { leasehold, base, client: client(), token: None, listening, _folder: None, server }
    }

    /// With the settings of a `leasehold.toml`.
    pub(crate) async fn configured(leasehold: Leasehold, access: Access, toml: &str) -> Self {
        let settings = Settings::parse(Path::new("leasehold.toml"), toml).unwrap();
        let server = Server::builder(leasehold.clone())
            .access(access)
            .limits(settings.limits)
            .workflows(settings.workflows)
            .triggers(settings.triggers)
            .build();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listening = listen(&server, listener).unwrap();
        let base = format!("http://{}", listening.address());
        Self { leasehold, base, client: client(), token: None, listening, _folder: None, server }
    }

    /// From now on requests carry this token.
    pub(crate) fn use_token(&mut self, token: &str) {
        self.token = Some(token.to_owned());
    }

    /// A request that can still be changed.
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

    /// The server's word on a lock.
    pub(crate) async fn look(&self, name: &str) -> Value {
        self.get(&format!("/api/v1/locks/{name}")).await.body
    }

    /// Looks at a lock until it is as wanted.
    pub(crate) async fn until(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..2_000 {
            let lock = self.look(name).await;
            if wanted(&lock) {
                return lock;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("lock {name} does not become as wanted: {}", self.look(name).await)
    }

    /// Looks at a lock until so many wait for it.
    pub(crate) async fn until_waiters(&self, name: &str, count: usize) -> Value {
        self.until(name, |lock| lock["waiters"].as_array().unwrap().len() == count).await
    }

    pub(crate) async fn stop(self) {
        self.listening.stop().await;
    }
}

impl Reply {
    /// Sends the request.
    pub(crate) async fn of(request: RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Self { status, headers, body }
    }

    /// The code of a problem, which has to be one.
    pub(crate) fn code(&self) -> &str {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{}", self.body);
        assert_eq!(self.body["success"], false);
        assert_eq!(self.body["status"], self.status);
        self.body["code"].as_str().unwrap()
    }
}

/// A server over memory and one over SQLite, for tests that go over both. The folder goes with the second one's file.
pub(crate) async fn both() -> (Vec<Lab>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let sqlite = Leasehold::connect(&url).await.unwrap();
    (vec![Lab::open().await, Lab::over(sqlite, Access::Open).await], folder)
}

/// A client. It wants a provider of cryptography, even for plain HTTP, if anything in this program is built with TLS.
pub(crate) fn client() -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::new()
}
