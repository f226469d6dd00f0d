//! TLS: the server's certificate is always verified, against the named CA or those of the system.

use std::path::Path;
use std::time::Duration;

use rustls::client::WantsClientCert;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};

use super::options::{ClientCertificate, HttpOptions, misconfigured};
use crate::Result;
use crate::store::support::http_client::{self, DirectConnector};
use crate::store::support::tls;

/// Timeout of a connection attempt; a slower attempt is abandoned and retried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Builds the connector.
pub(super) fn connector(options: &HttpOptions) -> Result<DirectConnector> {
    let roots = if options.tls {
        tls::trusted_roots(options.ca.as_deref(), "?ca=/path/ca.pem")?
    } else {
        RootCertStore::empty()
    };
    let config = tls::config_builder(tls::provider())?.with_root_certificates(roots);
    let config = match &options.client {
        None => config.with_no_client_auth(),
        Some(files) => with_client_certificate(config, files)?,
    };
    Ok(http_client::connector(config, CONNECT_TIMEOUT))
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
    let chain = tls::pem_certificates(&files.cert).map_err(|error| unreadable(&files.cert, hint, error))?;
    let hint = "key names a file with the private key of the client's certificate in PEM, without a password";
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unreadable(&files.key, hint, error))?;
    config.with_client_auth_cert(chain, key).map_err(|error| {
        let (cert, key) = (files.cert.display(), files.key.display());
        misconfigured(&format!("{cert} and {key} cannot be used"), "the key must belong to the certificate")
            .because(error)
    })
}
