//! A GitHub App: it proves with its key who it is, and draws tokens.

use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use serde_json::{Value, json};

use super::description::Description;
use super::repo::Repo;

/// A proof may be good for so many seconds, and may be from so many seconds ahead.
const LONGEST: u64 = 600;
const AHEAD: u64 = 60;

/// An App that is known to the repository.
#[derive(Debug, Clone)]
pub(in crate::engines::github) struct App {
    pub(in crate::engines::github) id: String,
    pub(in crate::engines::github) installation: String,
    /// The login that its tokens belong to.
    pub(in crate::engines::github) login: String,
    modulus: Vec<u8>,
    exponent: Vec<u8>,
}

impl App {
    /// A new one with a new key, and that key in PEM. The key is made by what has fetched the description, too.
    pub(in crate::engines::github) fn new(login: &str) -> (Self, String) {
        let script = "const { privateKey } = require('crypto').generateKeyPairSync('rsa', { modulusLength: 2048 });\
                      const { n, e } = privateKey.export({ format: 'jwk' });\
                      const pem = privateKey.export({ format: 'pem', type: 'pkcs1' });\
                      console.log(JSON.stringify({ n, e, pem }));";
        let made = Command::new("node").args(["-e", script]).output().expect("node runs");
        let made: Value = serde_json::from_slice(&made.stdout).expect("node makes a key");
        let part = |name: &str| decoded(made[name].as_str().expect("it is a text")).expect("it is base64");
        let (modulus, exponent) = (part("n"), part("e"));
        let (id, installation) = ("4711".to_owned(), "7".to_owned());
        let pem = made["pem"].as_str().expect("it is a text").to_owned();
        (Self { id, installation, login: login.to_owned(), modulus, exponent }, pem)
    }

    /// What is wrong with a proof.
    fn check(&self, proof: &str, now: u64) -> Result<(), String> {
        let (signed, signature) = proof.rsplit_once('.').ok_or("no JSON web token")?;
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
        if issued > now + AHEAD || expires <= now || expires > now + LONGEST {
            return Err(format!("from {issued} to {expires}, and it is {now}"));
        }
        Ok(())
    }
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Whose token is asked for.
pub(super) fn installation_of(path: &str) -> Option<&str> {
    path.strip_prefix("/app/installations/")?.strip_suffix("/access_tokens")
}

/// The App itself, or what is wrong.
pub(super) fn show(
    description: &Description,
    repo: &Repo,
    proof: &str,
    now: u64,
) -> Result<(u16, Option<Value>), String> {
    let app = repo.app.as_ref().ok_or("no such App")?;
    app.check(proof, now)?;
    let (slug, place) = (app.login.trim_end_matches("[bot]"), "https://example.com");
    let made = super::show::time(now);
    let shown = json!({
        "id": 4711, "node_id": "x", "owner": description.sample("simple-user"), "name": slug, "slug": slug,
        "description": null, "external_url": place, "html_url": place, "created_at": made, "updated_at": made,
        "permissions": {}, "events": [],
    });
    Ok((200, Some(shown)))
}

/// A token, or what is wrong.
pub(super) fn draw(
    description: &Description,
    repo: &mut Repo,
    installation: &str,
    proof: &str,
    now: u64,
) -> Result<(u16, Option<Value>), String> {
    let app = repo.app.as_ref().filter(|app| app.installation == installation).ok_or("no such App")?;
    app.check(proof, now)?;
    let mut token = description.sample("installation-token");
    token["token"] = json!(format!("token-of-{}", app.login));
    token["expires_at"] = json!(super::show::time(now + 3600));
    Ok((201, Some(token)))
}
