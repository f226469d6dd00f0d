//! GitHub App: authenticates with its key, and gets installation tokens.

use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use serde_json::{Value, json};

use super::description::Description;
use super::repo::Repo;

/// Maximum validity of a JSON Web Token in seconds, and how far in the future it may be issued.
const MAX_VALIDITY: u64 = 600;
const MAX_LEAD: u64 = 60;

/// App that is installed on the repository.
#[derive(Debug, Clone)]
pub(in crate::engines::github) struct App {
    pub(in crate::engines::github) id: String,
    pub(in crate::engines::github) installation: String,
    /// Login that the App's tokens belong to.
    pub(in crate::engines::github) login: String,
    modulus: Vec<u8>,
    exponent: Vec<u8>,
}

impl App {
    /// Creates an App with a new key, and returns that key in PEM. The key is created by `node`,
    /// which has fetched the description, too.
    pub(in crate::engines::github) fn new(login: &str) -> (Self, String) {
        let script = "const { privateKey } = require('crypto').generateKeyPairSync('rsa', { modulusLength: 2048 });\
                      const { n, e } = privateKey.export({ format: 'jwk' });\
                      const pem = privateKey.export({ format: 'pem', type: 'pkcs1' });\
                      console.log(JSON.stringify({ n, e, pem }));";
        let output = Command::new("node").args(["-e", script]).output().expect("node runs");
        let key: Value = serde_json::from_slice(&output.stdout).expect("node creates a key");
        let part = |name: &str| decoded(key[name].as_str().expect("a string")).expect("base64");
        let (modulus, exponent) = (part("n"), part("e"));
        let (id, installation) = ("4711".to_owned(), "7".to_owned());
        let pem = key["pem"].as_str().expect("a string").to_owned();
        (Self { id, installation, login: login.to_owned(), modulus, exponent }, pem)
    }

    /// Checks a JSON Web Token; the error says what is wrong with it.
    fn check(&self, credentials: &str, now: u64) -> Result<(), String> {
        let (signed, signature) = credentials.rsplit_once('.').ok_or("no JSON web token")?;
        let (header, claims) = signed.split_once('.').ok_or("no JSON web token")?;
        let key = RsaPublicKeyComponents { n: &self.modulus, e: &self.exponent };
        let signature = decoded(signature).ok_or("no signature")?;
        key.verify(&RSA_PKCS1_2048_8192_SHA256, signed.as_bytes(), &signature)
            .map_err(|_| "wrong signature")?;
        let json = |text: &str| decoded(text).and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let (header, claims) = json(header).zip(json(claims)).ok_or("no JSON")?;
        let (issued, expires) = claims["iat"].as_u64().zip(claims["exp"].as_u64()).ok_or("no dates")?;
        if header["alg"] != "RS256" || claims["iss"] != self.id.as_str() {
            return Err("another App".to_owned());
        }
        if issued > now + MAX_LEAD || expires <= now || expires > now + MAX_VALIDITY {
            return Err(format!("from {issued} to {expires}, and it is {now}"));
        }
        Ok(())
    }
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Returns the installation whose token is requested.
pub(super) fn installation_of(path: &str) -> Option<&str> {
    path.strip_prefix("/app/installations/")?.strip_suffix("/access_tokens")
}

/// Returns the App, or what is wrong with the request.
pub(super) fn show(
    description: &Description,
    repo: &Repo,
    credentials: &str,
    now: u64,
) -> Result<(u16, Option<Value>), String> {
    let app = repo.app.as_ref().ok_or("no such App")?;
    app.check(credentials, now)?;
    let (slug, url) = (app.login.trim_end_matches("[bot]"), "https://example.com");
    let created = super::responses::time(now);
    let shown = json!({
        "id": 4711, "node_id": "x", "owner": description.sample("simple-user"), "name": slug, "slug": slug,
        "description": null, "external_url": url, "html_url": url, "created_at": created, "updated_at": created,
        "permissions": {}, "events": [],
    });
    Ok((200, Some(shown)))
}

/// Returns an installation token, or what is wrong with the request.
pub(super) fn installation_token(
    description: &Description,
    repo: &mut Repo,
    installation: &str,
    credentials: &str,
    now: u64,
) -> Result<(u16, Option<Value>), String> {
    let app = repo.app.as_ref().filter(|app| app.installation == installation).ok_or("no such App")?;
    app.check(credentials, now)?;
    let mut token = description.sample("installation-token");
    token["token"] = json!(format!("token-of-{}", app.login));
    token["expires_at"] = json!(super::responses::time(now + 3600));
    Ok((201, Some(token)))
}
