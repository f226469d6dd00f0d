//! TLS: the server's certificate is always verified, against the named CA or those of the system.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::client::WantsClientCert;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};

use super::options::{ClientCertificate, HttpOptions, misconfigured};
use crate::Result;

/// Timeout of a connection attempt; a slower attempt is abandoned and retried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Builds the connector. The crypto provider is named here, so that no other part of the program
/// selects it.
pub(super) fn connector(options: &HttpOptions) -> Result<HttpsConnector<HttpConnector>> {
    let roots = if options.tls { trusted_roots(options.ca.as_deref())? } else { RootCertStore::empty() };
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| misconfigured("TLS cannot be set up", "please report this").because(error))?
        .with_root_certificates(roots);
    let config = match &options.client {
        None => config.with_no_client_auth(),
        Some(files) => with_client_certificate(config, files)?,
    };
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_keepalive(Some(Duration::from_secs(30)));
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let builder = HttpsConnectorBuilder::new().with_tls_config(config);
    let builder = if options.tls { builder.https_only() } else { builder.https_or_http() };
    Ok(builder.enable_http1().wrap_connector(http))
}

/// Adds the client's own certificate.
fn with_client_certificate(
    config: ConfigBuilder<ClientConfig, WantsClientCert>,
    files: &ClientCertificate,
) -> Result<ClientConfig> {
    let unreadable = |path: &Path, hint, error: pem::Error| {
        misconfigured(&format!("{} cannot be read", path.display()), hint).because(error)
    };
    let hint = "cert names a file with the client's certificate in PEM";
    let chain = CertificateDer::pem_file_iter(&files.cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| unreadable(&files.cert, hint, error))?;
    let hint = "key names a file with the private key of the client's certificate in PEM, without a password";
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unreadable(&files.key, hint, error))?;
    config.with_client_auth_cert(chain, key).map_err(|error| {
        let (cert, key) = (files.cert.display(), files.key.display());
        misconfigured(&format!("{cert} and {key} cannot be used"), "the key must belong to the certificate")
            .because(error)
    })
}

fn trusted_roots(ca: Option<&Path>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            let unreadable = |error: rustls::pki_types::pem::Error| {
                let message = format!("the certificates in {} cannot be read", path.display());
                misconfigured(&message, "ca names a file with certificates in PEM").because(error)
            };
            let found = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
            roots.add_parsable_certificates(found.collect::<Result<Vec<_>, _>>().map_err(unreadable)?);
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        let hint = "name a file with the certificate to trust: ?ca=/path/ca.pem";
        return Err(misconfigured("there is no certificate to trust", hint));
    }
    Ok(roots)
}
