//! Who a request comes from.

use axum::http::header;
use axum::http::request::Parts;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use leasehold::Leasehold;

use super::Role;
use super::desk::TokenDesk;
use super::token::{FixedToken, TokenText};
use crate::problem::Problem;

/// Who is let in.
#[derive(Debug, Clone)]
pub enum Access {
    /// Everybody, with all rights: for a server that only this machine can reach. Requests have to name this machine as
    /// their host, so that no web page can send them under another name.
    Open,
    /// Whoever has a token: one of these, or one in the store.
    Tokens(Vec<FixedToken>),
}

/// Finds out who a request comes from.
pub(crate) struct Gatekeeper {
    access: Access,
    desk: TokenDesk,
}

/// Somebody who was let in.
#[derive(Debug, Clone)]
pub(crate) struct Who {
    /// The name of the token.
    pub(crate) name: String,
    pub(crate) role: Role,
}

impl Gatekeeper {
    pub(crate) fn new(leasehold: Leasehold, access: Access) -> Self {
        Self { access, desk: TokenDesk::new(leasehold) }
    }

    /// Lets in, or says why not.
    pub(crate) async fn admit(&self, parts: &Parts) -> Result<Who, Problem> {
        let fixed = match &self.access {
            Access::Open if names_this_machine(parts) => {
                return Ok(Who { name: "anybody".to_owned(), role: Role::Admin });
            }
            Access::Open => {
                return Err(Problem::new("FORBIDDEN", "this server answers to this machine alone"));
            }
            Access::Tokens(fixed) => fixed,
        };
        let Some(text) = bearer(parts) else {
            let problem = Problem::new("UNAUTHENTICATED", "this request carries no token");
            return Err(problem
                .hint("send the header: Authorization: Bearer lh_…; get one with: leasehold token new"));
        };
        let unknown = || {
            let problem =
                Problem::new("UNAUTHENTICATED", "this token is not known, has ended or was revoked");
            problem.hint("get one with: leasehold token new")
        };
        let text = TokenText::parse(&text).ok_or_else(unknown)?;
        if let Some(token) = fixed.iter().find(|token| token.hash.is_of(&text)) {
            return Ok(Who { name: token.name.clone(), role: token.role });
        }
        let record = self.desk.find(&text).await?.ok_or_else(unknown)?;
        Ok(Who { name: record.name, role: record.role })
    }
}

/// The token of a request: after `Bearer`, or as the password of `Basic`, for clients that have nothing else.
fn bearer(parts: &Parts) -> Option<String> {
    let value = parts.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, rest) = value.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.trim().to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = STANDARD.decode(rest.trim()).ok()?;
    let (_, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some(password.to_owned())
}

/// Whether the request's host is this machine, by a name that no stranger can own.
fn names_this_machine(parts: &Parts) -> bool {
    let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| parts.uri.host()).unwrap_or("");
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(name: header::HeaderName, value: &str) -> Parts {
        let request = axum::http::Request::builder().uri("/x").header(name, value);
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_token_comes_as_bearer_or_as_a_password() {
        let token = |value| bearer(&parts(header::AUTHORIZATION, value));
        assert_eq!(token("Bearer lh_1_x").as_deref(), Some("lh_1_x"));
        assert_eq!(token("bearer  lh_1_x").as_deref(), Some("lh_1_x"));
        assert_eq!(token("Basic YWRhOmxoXzFfeA==").as_deref(), Some("lh_1_x"));
        assert_eq!(token("Basic ???"), None);
        assert_eq!(token("Digest x"), None);
    }

    #[test]
    fn only_names_that_mean_this_machine_are_this_machine() {
        let here = |host| names_this_machine(&parts(header::HOST, host));
        for host in ["localhost", "localhost:7420", "127.0.0.1:7420", "[::1]:7420", "127.8.8.8"] {
            assert!(here(host), "{host}");
        }
        for host in ["", "example.com", "localhost.example.com", "10.0.0.1:7420", "[::2]:1"] {
            assert!(!here(host), "{host}");
        }
    }
}
