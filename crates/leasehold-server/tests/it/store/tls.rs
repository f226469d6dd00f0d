//! TLS that is terminated by a proxy in front of the server.

use std::path::PathBuf;
use std::sync::Arc;

use leasehold::{Error, Leasehold};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::support::Served;

struct Encrypted {
    served: Served,
    port: u16,
    folder: tempfile::TempDir,
}

impl Encrypted {
    async fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), made.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let (acceptor, served) = (TlsAcceptor::from(Arc::new(config)), Served::on_memory());
        let (listener, to) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), served.address);
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut plain = TcpStream::connect(to).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut plain).await;
                });
            }
        });
        Self { served, port, folder }
    }

    fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    async fn connect(&self, url: &str) -> Result<Leasehold, Error> {
        let ca = self.ca();
        let url = url.replace("PORT", &self.port.to_string()).replace("CA", &ca.display().to_string());
        Leasehold::connect(&url).await
    }
}

#[tokio::test]
async fn a_certificate_of_the_named_ca_is_trusted() {
    let encrypted = Encrypted::new().await;
    let through = encrypted.connect("https://localhost:PORT?ca=CA").await.unwrap();
    through.lock("lock").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn everything_else_is_misconfigured_with_a_hint() {
    let encrypted = Encrypted::new().await;
    let (none, other) = (encrypted.folder.path().join("none.pem"), Encrypted::new().await);
    for (url, says) in [
        // A host name that does not match, an unknown CA, and a missing CA file.
        ("https://127.0.0.1:PORT?ca=CA".to_owned(), "TLS certificate that can be trusted"),
        (
            format!("https://localhost:PORT?ca={}", other.ca().display()),
            "TLS certificate that can be trusted",
        ),
        (format!("https://localhost:PORT?ca={}", none.display()), "cannot be read"),
    ] {
        let Err(error) = encrypted.connect(&url).await else { panic!("{url} was trusted") };
        assert_eq!(error.code(), "STORE_MISCONFIGURED", "{url}: {error:?}");
        assert!(error.to_string().contains(says), "{url}: {error}");
        assert!(error.hint().is_some());
    }
    // A server without TLS responds in plain text or closes the connection, like a stopping server.
    let plain = format!("https://localhost:{}?ca=CA", encrypted.served.address.port());
    let Err(error) = encrypted.connect(&plain).await else { panic!("it has no TLS") };
    let hint = error.hint().unwrap();
    let says = ["with TLS if the address says https", "write http: if the server has no TLS"];
    assert!(says.iter().any(|says| hint.contains(says)), "{error:?}");
}
