//! Credentials: a token, or a GitHub App that requests a new token every hour. Never printed.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

use crate::error::{Error, Result, StoreErrorKind};
use crate::model::Timestamp;

#[derive(Clone)]
pub(crate) enum Auth {
    /// No credentials configured; every call fails with a configuration error.
    Missing,
    /// Personal token, or the token of a workflow.
    Token(String),
    /// GitHub App, by its private key.
    App(App),
}

/// GitHub App that is installed for the repository's owner.
#[derive(Clone)]
pub(crate) struct App {
    id: String,
    pub(crate) installation: String,
    key: std::sync::Arc<RsaKeyPair>,
}

/// Lifetime of a JSON Web Token that authenticates the App; GitHub accepts at most ten minutes.
const JWT_TTL: Duration = Duration::from_mins(8);
/// Time by which a JSON Web Token is dated back, because clocks differ.
const JWT_BACKDATE: Duration = Duration::from_mins(1);

impl Auth {
    /// Whether GitHub regards the client as a bot: an App, or a workflow with an App's token.
    pub(super) fn is_app(&self) -> bool {
        match self {
            Self::Missing => false,
            Self::Token(token) => token.starts_with("ghs_"),
            Self::App(_) => true,
        }
    }

    pub(crate) fn from_env() -> Result<Self> {
        let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if let Some(token) = env("GITHUB_TOKEN").or_else(|| env("GH_TOKEN")) {
            return Ok(Self::Token(token));
        }
        let Some(id) = env("GITHUB_APP_ID") else { return Ok(Self::Missing) };
        let key = match (env("GITHUB_APP_PRIVATE_KEY"), env("GITHUB_APP_PRIVATE_KEY_FILE")) {
            (Some(key), _) => key,
            (None, Some(file)) => std::fs::read_to_string(&file).map_err(|error| {
                misconfigured(format!("the key of the GitHub App could not be read from {file}"))
                    .because(error)
            })?,
            (None, None) => return Err(misconfigured(
                "GITHUB_APP_ID is set, but neither GITHUB_APP_PRIVATE_KEY nor GITHUB_APP_PRIVATE_KEY_FILE"
                    .to_owned(),
            )),
        };
        let installation = env("GITHUB_APP_INSTALLATION_ID").ok_or_else(|| {
            misconfigured("GITHUB_APP_ID is set, but not GITHUB_APP_INSTALLATION_ID".to_owned())
        })?;
        Ok(Self::App(App::new(id, installation, &key)?))
    }
}

impl App {
    pub(crate) fn new(id: String, installation: String, pem: &str) -> Result<Self> {
        let unusable = || misconfigured("the key of the GitHub App is not an RSA key in PEM".to_owned());
        let key = match PrivateKeyDer::from_pem_slice(pem.as_bytes()) {
            Ok(PrivateKeyDer::Pkcs1(key)) => RsaKeyPair::from_der(key.secret_pkcs1_der()),
            Ok(PrivateKeyDer::Pkcs8(key)) => RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()),
            _ => return Err(unusable()),
        };
        let key = key.map_err(|_| unusable())?;
        if !installation.chars().all(|c| c.is_ascii_digit()) {
            return Err(misconfigured("invalid GITHUB_APP_INSTALLATION_ID: must be a number".to_owned()));
        }
        Ok(Self { id, installation, key: std::sync::Arc::new(key) })
    }

    /// Returns a JSON Web Token that authenticates the client as the App.
    pub(super) fn json_web_token(&self, now: Timestamp) -> Result<String> {
        let seconds = |time: Timestamp| time.as_micros() / 1_000_000;
        let claims = serde_json::json!({
            "iat": seconds(now.minus(JWT_BACKDATE)),
            "exp": seconds(now) + JWT_TTL.as_secs(),
            "iss": self.id,
        });
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"RS256","typ":"JWT"}"#);
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let mut signature = vec![0; self.key.public().modulus_len()];
        let random = ring::rand::SystemRandom::new();
        self.key.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).map_err(|_| {
            Error::store(
                StoreErrorKind::Broken,
                "signing with the key of the GitHub App failed",
                "please report this",
            )
        })?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// Omits the secrets.
impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("no credentials"),
            Self::Token(_) => f.write_str("a token"),
            Self::App(app) => write!(f, "app {}", app.id),
        }
    }
}

fn misconfigured(message: String) -> Error {
    let hint = "set GITHUB_TOKEN; or, for an App, GITHUB_APP_ID, GITHUB_APP_INSTALLATION_ID and GITHUB_APP_PRIVATE_KEY (or \
                GITHUB_APP_PRIVATE_KEY_FILE)";
    Error::store(StoreErrorKind::Misconfigured, message, hint)
}
