//! Address of a leasehold server and the client's credentials, from the URL.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, StoreErrorKind, StoreRemedy};
use crate::store::StoreUrl;
use crate::store::support::machine::local_token::local_token_for;
use crate::store::support::url::store_url::is_this_machine;
use crate::store::support::url::url_options::{UrlOptions, decoded};

/// Address of a leasehold server, and the client's credentials.
#[derive(Clone)]
pub struct HttpOptions {
    /// `http://HOST[:PORT][/path]` or the same with `https`, without a slash at the end.
    pub(super) base: String,
    pub(super) tls: bool,
    /// Whether the server runs on this machine.
    pub(super) local: bool,
    /// File with the certificates to trust, as PEM; by default those of the system.
    pub(super) ca: Option<PathBuf>,
    /// Certificate of the client and its private key, as PEM, for servers that require one.
    pub(super) client: Option<ClientCertificate>,
    pub(super) token: Option<String>,
    /// URL for output, without the token.
    pub(super) display_url: String,
}

/// Files that authenticate the client to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClientCertificate {
    /// Certificate, followed by the intermediate certificates up to the CA.
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
}

/// Settings of a URL, all for https.
const SETTINGS: [&str; 3] = ["ca=PATH", "cert=PATH", "key=PATH"];
const TOKEN_FILE_VARIABLE: &str = "LEASEHOLD_TOKEN_FILE";
const TOKEN_VARIABLE: &str = "LEASEHOLD_API_TOKEN";

impl HttpOptions {
    /// Parses `http[s]://[TOKEN@]HOST[:PORT][/path][?ca=PATH&cert=PATH&key=PATH]`. Without a token in
    /// the URL, the token is read from the file that `LEASEHOLD_TOKEN_FILE` names, or from
    /// `LEASEHOLD_API_TOKEN`, or, for a server on this machine, from the file that the server
    /// created.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        let mut options = Self::parse(url)?;
        if options.token.is_none() {
            options.token = token_from_environment()?;
        }
        if options.token.is_none() && options.local {
            options.token = options.port().and_then(local_token_for);
        }
        Ok(options)
    }

    fn port(&self) -> Option<u16> {
        let default = if self.tls { 443 } else { 80 };
        self.base.parse::<hyper::Uri>().ok().map(|uri| uri.port_u16().unwrap_or(default))
    }

    fn parse(url: &StoreUrl) -> Result<Self> {
        url.must_encode_password()?;
        let scheme = &url.scheme;
        let no_host = || misconfigured("the URL has no host", "write https://HOST or http://HOST:PORT");
        let address = url.address.strip_prefix("//").ok_or_else(no_host)?;
        let (token, address) = match address.rsplit_once('@') {
            Some((login, address)) => (parse_token(login)?, address),
            None => (None, address),
        };
        let (host, path) = address.split_once('/').unwrap_or((address, ""));
        if host.is_empty() {
            return Err(no_host());
        }
        let base = format!("{scheme}://{host}/{path}");
        let base = base.trim_end_matches('/').to_owned();
        let parsed =
            base.parse::<hyper::Uri>().ok().filter(|uri| uri.authority().is_some_and(has_valid_host));
        let Some(parsed) = parsed.filter(|_| !base.contains('#')) else {
            let message = format!("'{}' is not a server address", base.escape_debug());
            return Err(misconfigured(&message, "write https://HOST, http://HOST:PORT or https://HOST/path"));
        };
        let given = UrlOptions::parse(url, "an http: store", &SETTINGS)?;
        let tls = scheme == "https";
        if let Some(name) = ["ca", "cert", "key"].into_iter().find(|name| !tls && given.contains(name)) {
            let message = format!("{name}= is only allowed with TLS");
            return Err(misconfigured(&message, "write https: instead of http:"));
        }
        let client = match (given.path("cert")?, given.path("key")?) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some(ClientCertificate { cert, key }),
            _ => return Err(misconfigured("cert= and key= must be set together", "name both files, in PEM")),
        };
        Ok(Self {
            local: is_this_machine(parsed.host().unwrap_or_default().trim_matches(['[', ']'])),
            base,
            tls,
            ca: given.path("ca")?,
            client,
            token,
            display_url: url.to_string(),
        })
    }
}

/// Omits the token.
impl fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpOptions").field("url", &self.display_url).finish_non_exhaustive()
    }
}

/// Whether the authority is a host, optionally followed by a valid port.
fn has_valid_host(authority: &hyper::http::uri::Authority) -> bool {
    let host = authority.host();
    !host.is_empty() && (authority.as_str().len() == host.len() || authority.port_u16().is_some())
}

/// Extracts the token, which is the user, or, in the form `user:password@`, the password.
fn parse_token(login: &str) -> Result<Option<String>> {
    let token = match login.split_once(':') {
        Some((user, "")) => user,
        Some((_, password)) => password,
        None => login,
    };
    checked(&decoded(token)?, "the token in the URL")
}

fn token_from_environment() -> Result<Option<String>> {
    match std::env::var_os(TOKEN_FILE_VARIABLE) {
        Some(path) if !path.is_empty() => token_from_file(Path::new(&path)),
        _ => checked(std::env::var(TOKEN_VARIABLE).unwrap_or_default().trim(), TOKEN_VARIABLE),
    }
}

fn token_from_file(path: &Path) -> Result<Option<String>> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let message = format!("the token file {} cannot be read", path.display());
        misconfigured(&message, "LEASEHOLD_TOKEN_FILE must name a file that contains only the token")
            .because(error)
    })?;
    checked(text.trim(), "the file that LEASEHOLD_TOKEN_FILE names")
}

/// Returns the token if it can be sent in a header. The error does not contain the rejected value.
fn checked(token: &str, source: &str) -> Result<Option<String>> {
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = format!("{source} is invalid: must be printable ASCII without spaces");
        return Err(misconfigured(&message, "a token looks like lh_…").with_remedy(StoreRemedy::Token));
    }
    Ok(Some(token.to_owned()).filter(|token| !token.is_empty()))
}

pub(super) fn misconfigured(message: &str, hint: &str) -> Error {
    Error::store(StoreErrorKind::Misconfigured, message, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> Result<HttpOptions> {
        HttpOptions::parse(&StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_names_a_server_a_token_and_a_certificate() {
        let given = options("https://lh_1_s3cr3t@locks.example:7420/team/a/?ca=/etc/ca%20x.pem").unwrap();
        assert_eq!(given.base, "https://locks.example:7420/team/a");
        assert_eq!(given.token.as_deref(), Some("lh_1_s3cr3t"));
        assert_eq!(given.ca.as_deref(), Some(Path::new("/etc/ca x.pem")));
        assert!(given.tls && !given.local && given.client.is_none());
        assert!(!format!("{given:?}").contains("s3cr3t"));
        let given = options("https://h?cert=/c.pem&key=/k.pem").unwrap();
        let files = ClientCertificate { cert: "/c.pem".into(), key: "/k.pem".into() };
        assert_eq!((given.ca, given.client), (None, Some(files)));
        let given = options("http://[::1]:7420").unwrap();
        assert_eq!((given.base.as_str(), given.token, given.local), ("http://[::1]:7420", None, true));
        for url in ["http://:lh_1_s3cr3t@h", "http://lh_1_s3cr3t:@h", "http://ada:lh_1_s3cr3t@h"] {
            assert_eq!(options(url).unwrap().token.as_deref(), Some("lh_1_s3cr3t"), "{url}");
        }
    }

    #[test]
    fn invalid_urls_are_rejected_without_showing_a_secret() {
        for url in [
            "http:",
            "http:h",
            "http://",
            "http://s3cr3t@",
            "http://h h/",
            "http://h/#x",
            "http://h:x",
            "http://h?ca=/x",
            "http://h?cert=/x&key=/y",
            "https://h?cert=/x",
            "https://h?key=/x",
            "https://h?ca=/x&ca=/y",
            "https://h?s3cr3t",
            "https://h?tokn=s3cr3t",
            "https://s3cr3t%0a@h",
            "https://s3cr3t%ff@h",
        ] {
            let error = options(url).unwrap_err();
            assert_eq!(error.code(), "STORE_MISCONFIGURED", "{url}");
            let shown = format!("{error} {error:?}").replace("'s3cr3t'", "");
            assert!(!shown.contains("s3cr3t"), "{url}: {shown}");
        }
    }

    #[test]
    fn a_token_can_be_read_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "lh_1_s3cr3t\n").unwrap();
        assert_eq!(token_from_file(&file).unwrap().as_deref(), Some("lh_1_s3cr3t"));
        std::fs::write(&file, "two s3cr3t words").unwrap();
        assert!(!format!("{:?}", token_from_file(&file).unwrap_err()).contains("s3cr3t"));
        assert!(token_from_file(&folder.path().join("none")).is_err());
    }
}
