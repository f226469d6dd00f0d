//! TLS of clients: rustls with the provider ring, and the certificates to trust.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};

use crate::error::{Error, Result, StoreErrorKind};

/// Returns the builder of a configuration. The crypto provider is explicit, so that no other part of
/// the program determines it.
pub(crate) fn config_builder(
    provider: Arc<CryptoProvider>,
) -> Result<ConfigBuilder<ClientConfig, WantsVerifier>> {
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    builder.map_err(|error| misconfigured("TLS cannot be set up", "please report this").because(error))
}

/// Returns the crypto provider of all engines.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Returns the certificates to trust: those in the PEM file, or those of the system. `example` names
/// the file in hints: `?ca=/path/ca.pem`.
pub(crate) fn trusted_roots(file: Option<&Path>, example: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = match file {
        Some(path) => pem_certificates(path).map_err(|error| {
            let message = format!("the certificates in {} cannot be read", path.display());
            misconfigured(&message, &format!("name a file with certificates in PEM: {example}"))
                .because(error)
        })?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    roots.add_parsable_certificates(found);
    if roots.is_empty() {
        let hint = format!("name a file with the certificate to trust: {example}");
        return Err(misconfigured("there is no certificate to trust", &hint));
    }
    Ok(roots)
}

/// Reads all certificates of a PEM file.
pub(crate) fn pem_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_file_iter(path)?.collect()
}

fn misconfigured(message: &str, hint: &str) -> Error {
    Error::store(StoreErrorKind::Misconfigured, message, hint)
}
