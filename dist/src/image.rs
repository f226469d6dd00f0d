//! The container image: one layer with the binary, as an archive in the OCI layout that `docker load` reads
//! too.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::archive::{Tar, gzip};
use crate::contents::{HOMEPAGE, LICENSE, NAME, Release, SUMMARY};
use crate::digest::hex;

/// User of the server, as in `deploy/Dockerfile`.
const USER: u64 = 10001;
/// Where the system of the builder has the certificates of public CAs.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

pub(crate) fn pack(release: &Release, out: &Path) -> Result<String> {
    let layer = layer(release)?;
    let compressed = gzip(&layer)?;
    let config = serde_json::to_vec(&config(release, &digest(&layer))?)?;
    let descriptor = |kind: &str, content: &[u8]| json!({ "mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest(content), "size": content.len() });
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("config.v1+json", &config),
        "layers": [descriptor("layer.v1.tar+gzip", &compressed)],
    }))?;
    let mut described = descriptor("manifest.v1+json", &manifest);
    described["annotations"] = json!({ "org.opencontainers.image.ref.name": release.version });
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [described],
    });
    let blob = |content: &[u8]| format!("blobs/sha256/{}", hex(&Sha256::digest(content)));
    // The format of `docker save`, for versions that do not read the index.
    let docker = json!([{
        "Config": blob(&config), "RepoTags": [format!("{NAME}:{}", release.version)], "Layers": [blob(&compressed)],
    }]);
    let mut tar = Tar::new(release.time);
    tar.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    tar.file("index.json", 0o644, index.to_string().as_bytes())?;
    tar.file("manifest.json", 0o644, docker.to_string().as_bytes())?;
    for content in [&manifest, &config, &compressed] {
        tar.file(&blob(content), 0o644, content)?;
    }
    let name = format!("{NAME}-{}-oci-{}.tar", release.version, arch(release)?);
    fs::write(out.join(&name), tar.finish()?)?;
    Ok(name)
}

/// Returns the file system of the image.
fn layer(release: &Release) -> Result<Vec<u8>> {
    let mut tar = Tar::new(release.time);
    for (folder, mode, owner) in
        [("tmp/", 0o1777, 0), ("var/", 0o755, 0), ("var/lib/", 0o755, 0), ("var/lib/leasehold/", 0o700, USER)]
    {
        tar.folder(folder, mode, owner)?;
    }
    tar.folders_of(["etc/ssl/certs/x", "etc/leasehold/x", "usr/bin/x", "proc/x"].into_iter(), "")?;
    let certificates = fs::read(CERTIFICATES)
        .with_context(|| format!("cannot read {CERTIFICATES}: install ca-certificates"))?;
    tar.file(&CERTIFICATES[1..], 0o644, &certificates)?;
    let users = format!("root:x:0:0::/:/none\nleasehold:x:{USER}:{USER}::/var/lib/leasehold:/none\n");
    tar.file("etc/passwd", 0o644, users.as_bytes())?;
    tar.file("usr/bin/leasehold", 0o755, &release.binary)?;
    tar.finish()
}

fn config(release: &Release, layer: &str) -> Result<Value> {
    Ok(json!({
        "architecture": arch(release)?,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Env": ["PATH=/usr/bin", "HOME=/var/lib/leasehold", "XDG_STATE_HOME=/var/lib"],
            "Entrypoint": ["/usr/bin/leasehold"],
            "Cmd": ["serve", "--listen", "0.0.0.0:7420", "--config", "/etc/leasehold/leasehold.toml"],
            "ExposedPorts": { "7420/tcp": {} },
            "Volumes": { "/var/lib/leasehold": {} },
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": NAME,
                "org.opencontainers.image.description": SUMMARY,
                "org.opencontainers.image.licenses": LICENSE,
                "org.opencontainers.image.source": HOMEPAGE,
                "org.opencontainers.image.version": release.version,
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [layer] },
        "history": [{ "created_by": "cargo xtask dist" }],
    }))
}

/// Returns the processor in the words of the OCI format.
fn arch(release: &Release) -> Result<&'static str> {
    release.arch("amd64", "arm64")
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(content)))
}
