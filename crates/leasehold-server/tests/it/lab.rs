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

    /// Over this store.
    pub(crate) async fn over(leasehold: Leasehold, access: Access) -> Self {
        Self::with(leasehold, access, Limits::default()).await
    }

    /// With these limits.
    pub(crate) async fn with(leasehold: Leasehold, access: Access, limits: Limits) -> Self {
        let server = Server::builder(leasehold.clone()).access(access).limits(limits).build();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listening = listen(&server, listener).unwrap();
        let base = format!("http://{}", listening.address());
        Self { leasehold, base, client: Client::new(), token: None, listening, server }
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
        Self { leasehold, base, client: Client::new(), token: None, listening, server }
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
