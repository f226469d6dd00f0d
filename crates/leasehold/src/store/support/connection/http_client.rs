//! HTTP client of engines that are HTTP services: hyper over rustls, with pooled connections.

use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;

/// Connector without a proxy.
pub(crate) type DirectConnector = HttpsConnector<HttpConnector>;

/// Returns a connector for `https:` and `http:` addresses.
pub(crate) fn connector(tls: ClientConfig, connect_timeout: Duration) -> DirectConnector {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_keepalive(Some(Duration::from_secs(30)));
    http.set_connect_timeout(Some(connect_timeout));
    HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(http)
}

/// Returns a client that keeps idle connections for at most `max_idle`.
pub(crate) fn client<C>(connector: C, max_idle: Duration) -> Client<C, Full<Bytes>>
where
    C: hyper_util::client::legacy::connect::Connect + Clone,
{
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_idle_timeout(max_idle).pool_timer(TokioTimer::new()).timer(TokioTimer::new());
    builder.build(connector)
}
