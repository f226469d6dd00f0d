//! Browser without scripts: keeps its cookies, sends forms as a page does, and follows no redirect by itself.

use std::sync::Mutex;

use leasehold::Leasehold;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role};
use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder};

use crate::test_server::TestServer;

pub(super) struct Browser {
    client: Client,
    base: String,
    cookie: Mutex<String>,
}

/// Response with a page.
pub(super) struct Page {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

impl Browser {
    pub(super) fn new(server: &TestServer) -> Self {
        Self::at(&server.base)
    }

    pub(super) fn at(base: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().redirect(Policy::none()).build().unwrap();
        Self { client, base: base.to_owned(), cookie: Mutex::default() }
    }

    pub(super) async fn get(&self, path: &str) -> Page {
        self.send(self.client.get(format!("{}{path}", self.base))).await
    }

    pub(super) async fn get_with(&self, path: &str, name: &str, value: &str) -> Page {
        self.send(self.client.get(format!("{}{path}", self.base)).header(name, value)).await
    }

    /// Sends a form as a page of the dashboard does.
    pub(super) async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Page {
        let origin = self.base.clone();
        self.post_from(&origin, path, fields).await
    }

    /// Sends a form as a page of this origin does.
    pub(super) async fn post_from(&self, origin: &str, path: &str, fields: &[(&str, &str)]) -> Page {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self.client.post(format!("{}{path}", self.base)).header("origin", origin).body(body);
        self.send(request.header("content-type", "application/x-www-form-urlencoded")).await
    }

    /// Opens the form of an action and sends it with these fields.
    pub(super) async fn act(&self, path: &str, fields: &[(&str, &str)]) -> Page {
        let form = self.get(path).await;
        assert_eq!(form.status, 200, "{}", form.text);
        let csrf = form.field("csrf");
        let fields: Vec<_> = [("csrf", csrf.as_str())].into_iter().chain(fields.iter().copied()).collect();
        self.post(path, &fields).await
    }

    pub(super) async fn sign_in(&self, token: &str) -> Page {
        self.post("/sign-in", &[("token", token), ("next", "/locks")]).await
    }

    pub(super) fn cookie(&self) -> String {
        self.cookie.lock().unwrap().clone()
    }

    async fn send(&self, request: RequestBuilder) -> Page {
        let cookie = self.cookie();
        let request = if cookie.is_empty() { request } else { request.header("cookie", cookie) };
        let response = request.send().await.unwrap();
        if let Some(set) = response.headers().get("set-cookie") {
            let value = set.to_str().unwrap().split(';').next().unwrap();
            value.clone_into(&mut self.cookie.lock().unwrap());
        }
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Page { status, headers, text: response.text().await.unwrap() }
    }
}

impl Page {
    /// Returns the value of a hidden field.
    pub(super) fn field(&self, name: &str) -> String {
        let start = format!("name=\"{name}\" value=\"");
        let rest =
            self.text.split_once(&start).unwrap_or_else(|| panic!("no field {name} in {}", self.text)).1;
        rest.split_once('"').unwrap().0.to_owned()
    }

    pub(super) fn has(&self, text: &str) -> bool {
        self.text.contains(text)
    }

    pub(super) fn location(&self) -> &str {
        self.headers["location"].to_str().unwrap()
    }
}

/// Starts a server that requires tokens, and returns a token for each role.
pub(super) async fn closed_server() -> (TestServer, [String; 4]) {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = TestServer::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    let store = TokenStore::new(leasehold);
    let mut tokens = Vec::new();
    for role in [Role::Reader, Role::Worker, Role::Operator, Role::Admin] {
        tokens.push(store.create(&format!("the-{role}"), role, None).await.unwrap().text);
    }
    (server, tokens.try_into().unwrap())
}
