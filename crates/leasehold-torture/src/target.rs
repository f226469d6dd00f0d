//! Address of the engine in a store URL, and the URL that leads through a proxy instead.

use std::net::{SocketAddr, ToSocketAddrs};

/// Engine that can be reached through a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// Part of the URL before the address, and after it.
    around: (String, String),
    /// Whether a request stands alone, so that it can arrive twice.
    pub(crate) is_http: bool,
}

impl Target {
    /// Returns the engine of this URL if its traffic is not encrypted and stays on this machine.
    /// Through a proxy, encryption would be lost or the name in the certificate would be wrong.
    pub(crate) fn of(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let default_port = match scheme {
            "postgres" | "postgresql" => 5432,
            "redis" => 6379,
            "http" => 80,
            "dynamodb" => return Self::of_endpoint(url),
            _ => return None,
        };
        if url.contains("sslmode=require") || url.contains("sslmode=verify") {
            return None;
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let start = rest[..end].rfind('@').map_or(0, |at| at + 1);
        let (before, host, after) = (&rest[..start], &rest[start..end], &rest[end..]);
        let is_http = scheme == "http";
        Self::new(format!("{scheme}://{before}"), host, default_port, after, is_http)
    }

    /// Returns the engine of `endpoint=http://…`.
    fn of_endpoint(url: &str) -> Option<Self> {
        const SETTING: &str = "endpoint=http://";
        let start = url.find(SETTING)? + SETTING.len();
        let end = start + url[start..].find(['&', '/']).unwrap_or(url.len() - start);
        Self::new(url[..start].to_owned(), &url[start..end], 80, &url[end..], true)
    }

    fn new(before: String, host: &str, default_port: u16, after: &str, is_http: bool) -> Option<Self> {
        let address = match host.to_socket_addrs() {
            Ok(mut addresses) => addresses.next(),
            Err(_) => (host, default_port).to_socket_addrs().ok()?.next(),
        }?;
        let around = (before, after.to_owned());
        address.ip().is_loopback().then_some(Self { address, around, is_http })
    }

    /// Returns the URL that leads to this address instead.
    pub(crate) fn redirected(&self, to: SocketAddr) -> String {
        format!("{}{to}{}", self.around.0, self.around.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_on_this_machine_is_reached_through_a_proxy() {
        let proxy = "127.0.0.1:9".parse().unwrap();
        for (url, redirected) in [
            ("postgres://u:p%40@127.0.0.1:5433/db?pool=2", "postgres://u:p%40@127.0.0.1:9/db?pool=2"),
            ("redis://127.0.0.1", "redis://127.0.0.1:9"),
            ("http://localhost:7420", "http://127.0.0.1:9"),
            (
                "dynamodb://t?endpoint=http://127.0.0.1:8000&region=x",
                "dynamodb://t?endpoint=http://127.0.0.1:9&region=x",
            ),
        ] {
            assert_eq!(Target::of(url).unwrap().redirected(proxy), redirected);
        }
    }

    #[test]
    fn encrypted_and_remote_engines_are_not_redirected() {
        for url in [
            "sqlite:leasehold.db",
            "https://127.0.0.1:7420",
            "rediss://127.0.0.1",
            "postgres://127.0.0.1/db?sslmode=verify-full",
            "redis://192.0.2.1",
            "dynamodb://table",
        ] {
            assert_eq!(Target::of(url), None, "{url}");
        }
    }
}
