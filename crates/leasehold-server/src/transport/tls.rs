//! TLS: the server's certificate and key, the CA of client certificates, and reloading when the
//! files change.

use std::fs::{self, Metadata};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use leasehold::BootInstant;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_cert::der::Decode;

use crate::sync::LogLimit;

const CHECK_EVERY: Duration = Duration::from_secs(10);

/// Paths of the TLS files, all in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The server's certificate, followed by the intermediate certificates.
    pub cert: PathBuf,
    /// The private key of the server's certificate.
    pub key: PathBuf,
    /// The CA of client certificates. If set, every client needs a certificate from this CA.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Creates the paths.
    pub fn new(cert: PathBuf, key: PathBuf, client_ca: Option<PathBuf>) -> Self {
        Self { cert, key, client_ca }
    }
}

/// Error in the TLS files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsError {
    message: String,
    hint: &'static str,
}

impl TlsError {
    fn new(message: impl Into<String>, hint: &'static str) -> Self {
        Self { message: message.into(), hint }
    }

    /// Returns a suggestion for how to fix the error.
    pub fn hint(&self) -> &'static str {
        self.hint
    }
}

impl std::fmt::Display for TlsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TlsError {}

/// TLS 1.2 and 1.3 with the certificates of these files. Clones share the certificates loaded last.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    files: TlsFiles,
    current: RwLock<Loaded>,
    failures: LogLimit,
}

#[derive(Clone)]
struct Loaded {
    config: Arc<ServerConfig>,
    /// Earliest expiry time of the certificates in the chain.
    expires: SystemTime,
    stamps: Stamps,
}

/// File metadata that reveals whether a file was replaced or written. The size alone is not enough:
/// a renewed certificate may have the size of the old one.
type Stamps = Vec<Option<Stamp>>;

/// Device, inode, size and modification time of a file.
type Stamp = (u64, u64, u64, i64, i64);

fn stamps(files: &TlsFiles) -> Stamps {
    let paths = [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()];
    let stamp = |found: Metadata| (found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec());
    paths.into_iter().flatten().map(|path| fs::metadata(path).ok().map(stamp)).collect()
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("files", &self.0.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files and checks that the key belongs to the certificate.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let current = RwLock::new(Loaded::read(&files)?);
        Ok(Self(Arc::new(Shared { files, current, failures: LogLimit::default() })))
    }

    /// Returns the earliest expiry time of the certificates in use.
    pub fn expires(&self) -> SystemTime {
        self.current().expires
    }

    /// Whether clients need a certificate.
    pub fn wants_client_certificates(&self) -> bool {
        self.0.files.client_ca.is_some()
    }

    /// Reads the files again if they have changed. Returns whether they had changed.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let stamps = stamps(&self.0.files);
        if stamps == self.current().stamps {
            return Ok(false);
        }
        match Loaded::read(&self.0.files) {
            Ok(loaded) => {
                *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = loaded;
                Ok(true)
            }
            // The old certificates stay in use. The new files are not read again until they change
            // once more.
            Err(error) => {
                self.0.current.write().unwrap_or_else(PoisonError::into_inner).stamps = stamps;
                Err(error)
            }
        }
    }

    /// Reloads the files whenever they change. Never returns.
    pub(crate) async fn follow_files(self) {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            match self.reload() {
                Ok(false) => {}
                Ok(true) => {
                    tracing::info!(cert = %self.0.files.cert.display(), "reloaded the TLS certificates");
                }
                Err(error) => {
                    let hint = error.hint();
                    tracing::error!(%error, hint, "the new TLS certificates cannot be used; the old ones stay in use");
                }
            }
        }
    }

    /// Returns the encrypted stream, or `None` if the handshake fails or exceeds the limit.
    pub(crate) async fn handshake(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        limit: Duration,
    ) -> Option<TlsStream<TcpStream>> {
        let acceptor = TlsAcceptor::from(self.current().config);
        let error = match tokio::time::timeout(limit, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => error,
            Err(_) => io::Error::new(io::ErrorKind::TimedOut, "the handshake timed out"),
        };
        if let Some(more) = self.0.failures.admit(BootInstant::now()) {
            tracing::info!(address = %from.ip(), %error, more, "a TLS handshake failed");
        }
        None
    }

    fn current(&self) -> Loaded {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Loaded {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        // Taken before the files are read: a change in between triggers another reload.
        let stamps = stamps(files);
        let chain = certificates(&files.cert)?;
        let expires = not_after(&chain, &files.cert)?;
        let key = PrivateKeyDer::from_pem_file(&files.key)
            .map_err(|error| unreadable(&files.key, "private key", &error))?;
        let provider = Arc::new(ring::default_provider());
        let clients: Arc<dyn ClientCertVerifier> = match &files.client_ca {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    let added = roots.add(certificate);
                    added.map_err(|error| unusable(path, &error, "client_ca names certificates of a CA"))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
                verifier.map_err(|error| unusable(path, &error, "client_ca names certificates of a CA"))?
            }
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::new(format!("TLS cannot be set up: {error}"), "please report this"))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)
            .map_err(|error| mismatch(files, &error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), expires, stamps })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(unreadable(path, "certificate", &pem::Error::NoItemsFound)),
        Ok(found) => Ok(found),
        Err(error) => Err(unreadable(path, "certificate", &error)),
    }
}

/// Returns the earliest expiry time in a chain, because an expired intermediate certificate breaks
/// the chain as well.
fn not_after(chain: &[CertificateDer<'_>], path: &Path) -> Result<SystemTime, TlsError> {
    let ends = |certificate: &CertificateDer<'_>| {
        let parsed = x509_cert::Certificate::from_der(certificate).map_err(|error| {
            unusable(path, &error, "write the server's certificate in PEM, then the CA's")
        })?;
        Ok(SystemTime::UNIX_EPOCH + parsed.tbs_certificate.validity.not_after.to_unix_duration())
    };
    let ends = chain.iter().map(ends).collect::<Result<Vec<_>, TlsError>>()?;
    Ok(ends.into_iter().min().unwrap_or(SystemTime::UNIX_EPOCH))
}

/// Builds the error for an unreadable file; the message contains none of the file's content.
fn unreadable(path: &Path, what: &str, error: &pem::Error) -> TlsError {
    let path = path.display();
    match error {
        pem::Error::Io(error) => {
            TlsError::new(format!("{path} cannot be read: {error}"), "let the user of the server read it")
        }
        _ => TlsError::new(
            format!("{path} has no {what} in PEM"),
            "PEM files have lines such as -----BEGIN CERTIFICATE-----; the key is in PKCS #8, PKCS #1 or SEC1, without a password",
        ),
    }
}

fn unusable(path: &Path, error: &dyn std::fmt::Display, hint: &'static str) -> TlsError {
    TlsError::new(format!("{} cannot be used: {error}", path.display()), hint)
}

fn mismatch(files: &TlsFiles, error: &rustls::Error) -> TlsError {
    let (cert, key) = (files.cert.display(), files.key.display());
    match error {
        rustls::Error::InconsistentKeys(_) => TlsError::new(
            format!("the key in {key} is not that of the first certificate in {cert}"),
            "the server's own certificate comes first, and both files are of one request",
        ),
        _ => TlsError::new(
            format!("{cert} and {key} cannot be used: {error}"),
            "use a certificate of version 3 with an RSA, ECDSA (P-256, P-384) or Ed25519 key",
        ),
    }
}
