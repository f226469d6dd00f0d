//! HTTP exchange with the GitHub API, directly or through the proxy that the environment names.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use rustls::{ClientConfig, RootCertStore};

use crate::Result;
use crate::store::support::connection::http_client::{DirectConnector, client, connector};
use crate::store::support::connection::tls;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum idle time of a connection that is reused.
const MAX_IDLE: Duration = Duration::from_secs(90);

/// HTTP client of one API address. It follows no redirects.
pub(super) enum HttpClient {
    Direct(Box<Client<DirectConnector, Full<Bytes>>>),
    /// Through `CONNECT` of a proxy, so that the proxy sees only encrypted requests.
    Proxied(Box<Client<HttpsConnector<Tunnel<DirectConnector>>, Full<Bytes>>>),
}

/// Reason why a request has no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("no response within 5 s")]
    TimedOut,
    #[error("the request failed")]
    Request(#[source] ClientError),
    #[error("the response ended early")]
    Body(#[source] hyper::Error),
}

impl HttpClient {
    /// Creates the client for an address of the API. `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` of the
    /// environment count for `https:`; plain `http:` is only allowed on this machine.
    pub(super) fn new(api: &str) -> Result<Self> {
        let api = api.parse::<Uri>().ok().filter(|uri| uri.scheme_str() == Some("https"));
        let proxy = api.as_ref().and_then(|api| Matcher::from_env().intercept(api));
        Self::build(api.is_some(), proxy.as_ref())
    }

    fn build(encrypted: bool, proxy: Option<&Intercept>) -> Result<Self> {
        let roots = if encrypted {
            tls::trusted_roots(None, "SSL_CERT_FILE=/path/ca.pem")?
        } else {
            RootCertStore::empty()
        };
        let config: ClientConfig =
            tls::config_builder(tls::provider())?.with_root_certificates(roots).with_no_client_auth();
        let direct = connector(config.clone(), REQUEST_TIMEOUT);
        let Some(proxy) = proxy else { return Ok(Self::Direct(Box::new(client(direct, MAX_IDLE)))) };
        let mut tunnel = Tunnel::new(proxy.uri().clone(), direct);
        if let Some(authorization) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(authorization.clone());
        }
        let builder = HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1();
        Ok(Self::Proxied(Box::new(client(builder.wrap_connector(tunnel), MAX_IDLE))))
    }

    /// Sends a request, and calls `on_headers` as soon as the headers of the response have arrived.
    pub(super) async fn exchange<T>(
        &self,
        request: Request<Full<Bytes>>,
        on_headers: impl FnOnce(&Response<Incoming>) -> T,
    ) -> Result<(T, Bytes), HttpError> {
        let exchange = async {
            let response = match self {
                Self::Direct(client) => client.request(request).await,
                Self::Proxied(client) => client.request(request).await,
            };
            let response = response.map_err(HttpError::Request)?;
            let headers = on_headers(&response);
            let body = response.into_body().collect().await.map_err(HttpError::Body)?;
            Ok((headers, body.to_bytes()))
        };
        tokio::time::timeout(REQUEST_TIMEOUT, exchange).await.unwrap_or(Err(HttpError::TimedOut))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Returns the first request that a proxy receives from a client with this proxy address.
    async fn connect_request(userinfo: &str) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = format!("http://{userinfo}{}", listener.local_addr().unwrap());
        let matcher = Matcher::builder().https(proxy).no("other.example").build();
        let api = "https://api.example/api/v3".parse().unwrap();
        assert!(matcher.intercept(&"https://other.example".parse().unwrap()).is_none());
        // Without TLS roots: the handshake does not begin.
        let client = HttpClient::build(false, matcher.intercept(&api).as_ref()).unwrap();
        let accepted = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").await.unwrap();
            String::from_utf8(request[..length].to_vec()).unwrap()
        });
        let request = Request::get(api).body(Full::default()).unwrap();
        let refused = client.exchange(request, |_| ()).await.unwrap_err();
        assert!(matches!(refused, HttpError::Request(_)), "{refused:?}");
        accepted.await.unwrap()
    }

    #[tokio::test]
    async fn a_proxy_receives_only_the_host() {
        let request = connect_request("").await;
        assert!(request.starts_with("CONNECT api.example:443 HTTP/1.1\r\n"), "{request}");
        assert!(!request.contains("api/v3"), "{request}");
    }

    #[tokio::test]
    async fn a_proxy_receives_its_credentials() {
        let request = connect_request("ada:s3cr3t@").await;
        // The name and the password, in Base64.
        assert!(request.to_lowercase().contains("proxy-authorization: basic "), "{request}");
        assert!(request.contains("YWRhOnMzY3IzdA=="), "{request}");
    }
}
