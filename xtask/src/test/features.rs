//! Commands that check each feature of each published package alone, so that no feature needs another
//! one that it does not name. All features together are checked by the other steps.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Part of the output of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    /// Registries that the package may be published to: `None` for all, empty for none.
    publish: Option<Vec<String>>,
    features: BTreeMap<String, Vec<String>>,
}

/// Returns the arguments of cargo for each check.
pub(super) fn checks(root: &Path) -> Result<Vec<Vec<String>>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.args(["metadata", "--format-version", "1", "--no-deps", "--locked"]).current_dir(root);
    let output = cargo.output().context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo metadata failed:\n{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("cannot read the output of cargo metadata")?;
    Ok(metadata.packages.iter().filter(|package| package.publish.is_none()).flat_map(checks_of).collect())
}

fn checks_of(package: &Package) -> Vec<Vec<String>> {
    let base = ["check", "--quiet", "--package", &package.name, "--no-default-features"].map(str::to_owned);
    // A feature that only names other features of the package adds no code of its own.
    let adds_code = |needs: &Vec<String>| !needs.iter().all(|need| package.features.contains_key(need));
    let features = package.features.iter().filter(|(_, needs)| needs.is_empty() || adds_code(needs));
    let alone = features.map(|(name, _)| [&base[..], &["--features".to_owned(), name.clone()]].concat());
    std::iter::once(base.to_vec()).chain(alone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_is_checked_alone_and_no_feature_too() {
        let features =
            [("default", vec!["a"]), ("a", vec!["dep:x"]), ("b", vec![]), ("full", vec!["a", "b"])];
        let features = features
            .map(|(name, needs)| (name.to_owned(), needs.into_iter().map(str::to_owned).collect::<Vec<_>>()));
        let package = Package { name: "p".to_owned(), publish: None, features: features.into() };
        let lines: Vec<_> = checks_of(&package).iter().map(|args| args.join(" ")).collect();
        let base = "check --quiet --package p --no-default-features";
        assert_eq!(lines, [base.to_owned(), format!("{base} --features a"), format!("{base} --features b")]);
    }
}
