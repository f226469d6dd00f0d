//! The package for Fedora, Red Hat, SUSE and their derivatives.

use std::path::Path;

use anyhow::{Context, Result};
use rpm::{BuildConfig, CompressionType, FileOptions, PackageBuilder};

use crate::contents::{DESCRIPTION, HOMEPAGE, LICENSE, NAME, Release, SUMMARY};

pub(crate) fn pack(release: &Release, out: &Path) -> Result<String> {
    let arch = release.arch("x86_64", "aarch64")?;
    let config = BuildConfig::default().compression(CompressionType::Gzip).source_date(release.time);
    let mut builder = PackageBuilder::new(NAME, &release.version, LICENSE, arch, SUMMARY);
    builder.using_config(config).release("1").url(HOMEPAGE).description(DESCRIPTION).build_host("localhost");
    for (path, mode, content) in release.installed() {
        let permissions = u16::try_from(mode).context("a mode has 16 bits")?;
        let options = FileOptions::new(format!("/{path}")).permissions(permissions);
        builder.with_file_contents(content, options).with_context(|| format!("cannot add {path}"))?;
    }
    let name = format!("{NAME}-{}-1.{arch}.rpm", release.version);
    let package = builder.build().context("cannot build the package")?;
    package.write_file(out.join(&name)).context("cannot write the package")?;
    Ok(name)
}
