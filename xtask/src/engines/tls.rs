//! Certificates for the engines: a CA, a server certificate that it has signed, and another CA.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

/// Paths of the certificates.
pub(super) struct Tls {
    pub(super) authority: PathBuf,
    pub(super) other_authority: PathBuf,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

impl Tls {
    pub(super) fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let [authority, other_authority, certificate, key] =
            ["ca.pem", "other-ca.pem", "server.pem", "server.key"].map(|name| folder.join(name));
        let issuer = create_authority("leasehold tests", &authority)?;
        create_authority("leasehold tests, the other", &other_authority)?;
        let server_key = KeyPair::generate()?;
        let mut server = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        server.distinguished_name.push(DnType::CommonName, "localhost");
        server.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        fs::write(&certificate, server.signed_by(&server_key, &issuer)?.pem())?;
        fs::write(&key, server_key.serialize_pem())?;
        Ok(Self { authority, other_authority, certificate, key })
    }
}

fn create_authority(name: &str, file: &Path) -> Result<Issuer<'static, KeyPair>> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(file, params.self_signed(&key)?.pem())?;
    Ok(Issuer::new(params, key))
}
