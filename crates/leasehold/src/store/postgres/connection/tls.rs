//! Encryption, with the semantics of `sslmode`.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, SignatureScheme};
use tokio_postgres::Socket;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, Result, StoreErrorKind};
use crate::store::postgres::options::{PostgresOptions, SslMode};
use crate::store::support::connection::tls;

pub(crate) fn connector(options: &PostgresOptions) -> Result<MakeRustlsConnect> {
    let provider = tls::provider();
    let check = match options.sslmode {
        SslMode::VerifyFull => Check::Host(trusted(options, &provider)?),
        SslMode::VerifyCa => Check::Chain(trusted(options, &provider)?),
        // A configured root certificate is enforced, as in `libpq`.
        SslMode::Require if options.sslrootcert.is_some() => Check::Chain(trusted(options, &provider)?),
        SslMode::Disable | SslMode::Prefer | SslMode::Require => Check::Nothing,
    };
    let verifier = Verifier { check, provider: provider.clone() };
    let config = tls::config_builder(provider)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn trusted(options: &PostgresOptions, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>> {
    let roots = tls::trusted_roots(options.sslrootcert.as_deref(), "?sslrootcert=/path/ca.pem")?;
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    verifier.map_err(|error| {
        let hint = "set sslrootcert=/path/ca.pem to a file with the certificate to trust";
        Error::store(StoreErrorKind::Misconfigured, "no trusted certificate was found", hint).because(error)
    })
}

/// TLS connector of one connection.
pub(crate) type Connect = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;

#[derive(Debug)]
enum Check {
    Host(Arc<WebPkiServerVerifier>),
    Chain(Arc<WebPkiServerVerifier>),
    /// Only that the server has the private key: encrypted, but the server is not authenticated.
    Nothing,
}

#[derive(Debug)]
struct Verifier {
    check: Check,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verify = |verifier: &WebPkiServerVerifier| {
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        };
        match &self.check {
            Check::Nothing => Ok(ServerCertVerified::assertion()),
            Check::Host(verifier) => verify(verifier),
            Check::Chain(verifier) => match verify(verifier) {
                // The name is checked last: every other check has passed.
                Err(rustls::Error::InvalidCertificate(
                    CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
                )) => Ok(ServerCertVerified::assertion()),
                other => other,
            },
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
