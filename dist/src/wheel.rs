//! The package for pip: a wheel with the binary as a script.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::contents::{HOMEPAGE, LICENSE, NAME, Release, SUMMARY};

pub(crate) fn pack(release: &Release, out: &Path) -> Result<String> {
    let tag = tag(release)?;
    let info = format!("{NAME}-{}.dist-info", release.version);
    let metadata = format!(
        "Metadata-Version: 2.4\nName: {NAME}\nVersion: {}\nSummary: {SUMMARY}\nLicense-Expression: {LICENSE}\n\
         Project-URL: Source, {HOMEPAGE}\nRequires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n{}",
        release.version, release.readme,
    );
    let mut wheel = format!("Wheel-Version: 1.0\nGenerator: {NAME}-dist\nRoot-Is-Purelib: false\n");
    for platform in tag.trim_start_matches("py3-none-").split('.') {
        let _ = writeln!(wheel, "Tag: py3-none-{platform}");
    }
    let script = format!("{NAME}-{}.data/scripts/{NAME}", release.version);
    let mut files: Vec<(String, u32, &[u8])> = vec![
        (script, 0o755, &release.binary),
        (format!("{info}/METADATA"), 0o644, metadata.as_bytes()),
        (format!("{info}/WHEEL"), 0o644, wheel.as_bytes()),
    ];
    for license in &release.licenses {
        files.push((format!("{info}/licenses/{}", license.path), license.mode, &license.content));
    }
    let mut record = String::new();
    for (path, _, content) in &files {
        let sum = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(content));
        let _ = writeln!(record, "{path},sha256={sum},{}", content.len());
    }
    let _ = writeln!(record, "{info}/RECORD,,");
    files.push((format!("{info}/RECORD"), 0o644, record.as_bytes()));

    let name = format!("{NAME}-{}-{tag}.whl", release.version);
    let mut zip = ZipWriter::new(File::create(out.join(&name)).context("cannot create the file")?);
    for (path, mode, content) in files {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .unix_permissions(mode);
        zip.start_file(&path, options).with_context(|| format!("cannot add {path}"))?;
        zip.write_all(content).with_context(|| format!("cannot add {path}"))?;
    }
    zip.finish().context("cannot finish the archive")?;
    Ok(name)
}

/// Returns the platforms that the wheel may be installed on.
fn tag(release: &Release) -> Result<String> {
    let arch = release.arch("x86_64", "aarch64")?;
    Ok(match release.target.as_str() {
        target if target.contains("apple") => {
            format!("py3-none-macosx_11_0_{}", release.arch("x86_64", "arm64")?)
        }
        // A static binary needs no version of any C library.
        _ if release.is_static() => format!("py3-none-manylinux_2_17_{arch}.musllinux_1_1_{arch}"),
        _ => format!("py3-none-linux_{arch}"),
    })
}
