//! TLS of the server: handshakes, client certificates, changed files.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use leasehold::{Error, Leasehold};
use leasehold_server::{Access, Limits, Listening, Server, Tls, TlsFiles, listen_tls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// CA, and a folder with the certificates that it has signed.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "a CA for tests");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `NAME.pem` and `NAME.key` for this host.
    fn sign(&self, name: &str, host: &str) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.path(&format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn files(&self) -> TlsFiles {
        TlsFiles::new(self.path("server.pem"), self.path("server.key"), None)
    }

    fn url(&self, listening: &Listening, more: &str) -> String {
        let (port, ca) = (listening.address().port(), self.path("ca.pem"));
        format!("https://localhost:{port}?ca={}{more}", ca.display())
    }
}

async fn serve(tls: &Tls, limits: Limits) -> Listening {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = Server::builder(leasehold).access(Access::Open).limits(limits).build();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listen_tls(&server, tls.clone(), listener).unwrap()
}

async fn takes_and_releases(url: &str) -> Result<(), Error> {
    let leasehold = Leasehold::connect(url).await?;
    leasehold.lock("lock").acquire().await?.release().await
}

#[tokio::test]
async fn requests_are_answered_over_tls_and_not_without() {
    let authority = Authority::new();
    authority.sign("server", "localhost");
    let tls = Tls::load(authority.files()).unwrap();
    assert!(!tls.wants_client_certificates());
    assert!(tls.expires() > SystemTime::now());
    let listening = serve(&tls, Limits::default()).await;
    takes_and_releases(&authority.url(&listening, "")).await.unwrap();
    let plain = Leasehold::connect(&format!("http://{}", listening.address())).await;
    assert!(plain.is_err(), "it speaks TLS alone");
    listening.stop().await;
}

#[tokio::test]
async fn with_a_client_ca_only_its_clients_are_accepted() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    authority.sign("server", "localhost");
    authority.sign("client", "ada");
    stranger.sign("client", "ada");
    let mut files = authority.files();
    files.client_ca = Some(authority.path("ca.pem"));
    let tls = Tls::load(files).unwrap();
    assert!(tls.wants_client_certificates());
    let listening = serve(&tls, Limits::default()).await;
    let with = |of: &Authority| {
        let (cert, key) = (of.path("client.pem"), of.path("client.key"));
        authority.url(&listening, &format!("&cert={}&key={}", cert.display(), key.display()))
    };
    takes_and_releases(&with(&authority)).await.unwrap();
    for url in [authority.url(&listening, ""), with(&stranger)] {
        let error = takes_and_releases(&url).await.unwrap_err();
        let told = format!("{error} {}", error.hint().unwrap_or_default());
        // A rejected client may see the reason, or only the end of the connection.
        assert!(told.contains("cert=PATH") || told.contains("hung up"), "{told}");
    }
    let mixed = format!(
        "&cert={}&key={}",
        authority.path("client.pem").display(),
        stranger.path("client.key").display()
    );
    let error = takes_and_releases(&authority.url(&listening, &mixed)).await.unwrap_err();
    assert_eq!(error.code(), "STORE_MISCONFIGURED", "{error}");
    listening.stop().await;
}

#[tokio::test]
async fn an_incomplete_handshake_times_out_and_counts_as_a_connection() {
    let authority = Authority::new();
    authority.sign("server", "localhost");
    let mut limits = Limits::default();
    limits.header_time = Duration::from_secs(2);
    limits.connections = 3;
    let listening = serve(&Tls::load(authority.files()).unwrap(), limits).await;
    let mut silent = TcpStream::connect(listening.address()).await.unwrap();
    // Only the first bytes of a handshake.
    silent.write_all(&[0x16, 0x03, 0x01]).await.unwrap();
    let _more = [listening.address(); 2].map(|address| std::net::TcpStream::connect(address).unwrap());
    // All connections are in use until then: this client waits for one.
    let begun = std::time::Instant::now();
    takes_and_releases(&authority.url(&listening, "")).await.unwrap();
    assert!(begun.elapsed() > Duration::from_secs(1), "{:?}", begun.elapsed());
    let read = tokio::time::timeout(Duration::from_secs(5), silent.read(&mut [0; 64])).await;
    assert!(read.expect("it is still open").map_or(true, |read| read == 0));
    // An incomplete handshake does not delay the end of the server.
    let _silent = TcpStream::connect(listening.address()).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), listening.stop()).await.unwrap();
}

#[tokio::test]
async fn changed_files_are_reloaded_and_invalid_ones_are_ignored() {
    let (authority, other) = (Authority::new(), Authority::new());
    authority.sign("server", "localhost");
    let tls = Tls::load(authority.files()).unwrap();
    let listening = serve(&tls, Limits::default()).await;
    let (old, new) = (authority.url(&listening, ""), other.url(&listening, ""));
    assert!(!tls.reload().unwrap(), "nothing has changed");
    takes_and_releases(&old).await.unwrap();
    takes_and_releases(&new).await.unwrap_err();

    // A certificate without its key: the old pair stays in use.
    other.sign("server", "localhost");
    fs::copy(other.path("server.pem"), authority.path("server.pem")).unwrap();
    let error = tls.reload().unwrap_err();
    assert!(error.to_string().contains("is not that of the first certificate"), "{error}");
    assert!(!tls.reload().unwrap(), "the same mistake is told once");
    takes_and_releases(&old).await.unwrap();

    fs::copy(other.path("server.key"), authority.path("server.key")).unwrap();
    assert!(tls.reload().unwrap());
    takes_and_releases(&new).await.unwrap();
    takes_and_releases(&old).await.unwrap_err();

    fs::remove_file(authority.path("server.key")).unwrap();
    assert!(tls.reload().is_err());
    takes_and_releases(&new).await.unwrap();
    listening.stop().await;
}

#[test]
fn errors_name_the_file_and_not_its_content() {
    let authority = Authority::new();
    authority.sign("server", "localhost");
    authority.sign("other", "localhost");
    fs::write(authority.path("text"), "s3cr3t\n").unwrap();
    let with = |cert: &str, key: &str, client_ca: Option<&str>| {
        let client_ca = client_ca.map(|name| authority.path(name));
        TlsFiles::new(authority.path(cert), authority.path(key), client_ca)
    };
    for (files, says) in [
        (with("none", "server.key", None), "none cannot be read"),
        (with("server.pem", "none", None), "none cannot be read"),
        (with("text", "server.key", None), "text has no certificate in PEM"),
        (with("server.key", "server.key", None), "server.key has no certificate in PEM"),
        (with("server.pem", "server.pem", None), "server.pem has no private key in PEM"),
        (with("server.pem", "other.key", None), "other.key is not that of the first certificate in"),
        (with("server.pem", "server.key", Some("text")), "text has no certificate in PEM"),
    ] {
        let error = Tls::load(files).unwrap_err();
        assert!(error.to_string().contains(says), "{says}: {error}");
        assert!(!format!("{error:?}").contains("s3cr3t") && !error.hint().is_empty());
    }
}
