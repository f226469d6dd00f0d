//! `cargo xtask deny`: checks the dependency tree against the bans, licences and sources of `deny.toml`.
//!
//! `cargo deny check bans licenses sources` enforces the same rules and more, but takes many minutes to build on a new
//! machine. This command reads the same file and `cargo metadata`, and rejects unknown settings. Advisories need
//! `cargo deny check advisories` and a network.

mod license;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::cargo::metadata;

/// Prints every violation; returns whether there is none.
pub(crate) fn passes(root: &Path) -> Result<bool> {
    let text = std::fs::read_to_string(root.join("deny.toml")).context("cannot read deny.toml")?;
    let rules = Rules::read(&text)?;
    let metadata = metadata::<Metadata>(root, "--all-features")?;
    let violations = rules.violations(&metadata);
    for violation in &violations {
        println!("{violation}");
    }
    let (packages, twice) = (metadata.packages.len(), metadata.in_several_versions());
    println!("packages: {packages}, in several versions: {twice}, violations: {}", violations.len());
    Ok(violations.is_empty())
}

/// Part of `deny.toml` that is enforced here. An unknown key is an error, because its rule would not be
/// enforced.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    #[serde(rename = "graph")]
    _graph: toml::Table,
    bans: Bans,
    licenses: Licenses,
    sources: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    multiple_versions: String,
    wildcards: String,
    allow_wildcard_paths: bool,
    deny: Vec<Banned>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: String,
    unknown_git: String,
    allow_registry: Vec<String>,
}

impl Rules {
    fn read(text: &str) -> Result<Self> {
        let rules: Self =
            toml::from_str(text).context("deny.toml has a setting that cargo xtask deny does not enforce")?;
        let Bans { multiple_versions, wildcards, allow_wildcard_paths, .. } = &rules.bans;
        let Sources { unknown_registry, unknown_git, .. } = &rules.sources;
        ensure!(
            multiple_versions == "warn" && wildcards == "deny" && *allow_wildcard_paths,
            "deny.toml: [bans] differs from the rules that cargo xtask deny enforces"
        );
        ensure!(
            unknown_registry == "deny" && unknown_git == "deny",
            "deny.toml: [sources] differs from the rules that cargo xtask deny enforces"
        );
        Ok(rules)
    }

    fn violations(&self, metadata: &Metadata) -> Vec<String> {
        let shipped = metadata.shipped();
        let mut found = Vec::new();
        for package in &metadata.packages {
            let name = format!("{} {}", package.name, package.version);
            if let Some(banned) = self.bans.deny.iter().find(|banned| banned.name == package.name) {
                found.push(format!("{name}: banned: {}", banned.reason));
            }
            if let Some(source) = package.source.as_deref().filter(|source| !self.is_known(source)) {
                found.push(format!("{name}: comes from {source}, which [sources] does not allow"));
            }
            if package.source.is_none() {
                let wildcards = package.dependencies.iter().filter(|on| on.req == "*" && on.path.is_none());
                found.extend(
                    wildcards
                        .map(|on| format!("{name}: depends on any version of {}; name a version", on.name)),
                );
            }
            if shipped.contains(package.id.as_str()) {
                found.extend(self.license(package).map(|problem| format!("{name}: {problem}")));
            }
        }
        found
    }

    fn is_known(&self, source: &str) -> bool {
        let registry = source.strip_prefix("registry+");
        registry.is_some_and(|registry| self.sources.allow_registry.iter().any(|allowed| allowed == registry))
    }

    /// Returns the problem of a licence; `None` if allowed licences suffice to use the package.
    fn license(&self, package: &Package) -> Option<String> {
        let Some(text) = &package.license else {
            return Some("names no licence; remove the dependency, or check its files".to_owned());
        };
        match license::is_met(text, &self.licenses.allow) {
            Err(error) => Some(format!("its licence '{text}' cannot be read: {error}")),
            Ok(true) => None,
            Ok(false) => Some(format!("its licence '{text}' is not among those that [licenses] allows")),
        }
    }
}

/// Output of `cargo metadata`.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Debug, Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Debug, Deserialize)]
struct EdgeKind {
    kind: Option<String>,
}

impl Metadata {
    /// Returns the packages that are not only dev-dependencies.
    fn shipped(&self) -> BTreeSet<&str> {
        let nodes: BTreeMap<_, _> = self.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let mut next: Vec<&str> = self.workspace_members.iter().map(String::as_str).collect();
        let mut found = BTreeSet::new();
        while let Some(id) = next.pop() {
            if !found.insert(id) {
                continue;
            }
            let edges = nodes.get(id).into_iter().flat_map(|node| &node.deps);
            let shipped =
                edges.filter(|edge| edge.dep_kinds.iter().any(|kind| kind.kind.as_deref() != Some("dev")));
            next.extend(shipped.map(|edge| edge.pkg.as_str()));
        }
        found
    }

    fn in_several_versions(&self) -> usize {
        let mut versions = BTreeMap::<&str, usize>::new();
        for package in &self.packages {
            *versions.entry(&package.name).or_default() += 1;
        }
        versions.values().filter(|count| **count > 1).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
        [graph]
        all-features = true
        [bans]
        multiple-versions = "warn"
        wildcards = "deny"
        allow-wildcard-paths = true
        deny = [{ crate = "openssl-sys", reason = "TLS is rustls" }]
        [licenses]
        allow = ["MIT", "Apache-2.0"]
        [sources]
        unknown-registry = "deny"
        unknown-git = "deny"
        allow-registry = ["https://known"]
    "#;

    fn package(name: &str, license: Option<&str>, source: Option<&str>) -> Package {
        Package {
            id: name.to_owned(),
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: license.map(str::to_owned),
            source: source.map(str::to_owned),
            dependencies: Vec::new(),
        }
    }

    fn edge(to: &str, kind: Option<&str>) -> Edge {
        Edge { pkg: to.to_owned(), dep_kinds: vec![EdgeKind { kind: kind.map(str::to_owned) }] }
    }

    fn violations(packages: Vec<Package>, deps: Vec<Edge>) -> Vec<String> {
        let own = "own".to_owned();
        let nodes = vec![Node { id: own.clone(), deps }];
        let metadata = Metadata { packages, workspace_members: vec![own], resolve: Resolve { nodes } };
        Rules::read(RULES).unwrap().violations(&metadata)
    }

    #[test]
    fn banned_crates_unknown_sources_and_licences_are_violations() {
        let known = Some("registry+https://known");
        let good = vec![package("own", Some("MIT"), None), package("a", Some("MIT OR GPL-3.0"), known)];
        assert_eq!(violations(good, vec![edge("a", None)]), Vec::<String>::new());
        for (bad, expected) in [
            (package("openssl-sys", Some("MIT"), known), "banned: TLS is rustls"),
            (package("a", Some("MIT"), Some("registry+https://other")), "comes from registry+https://other"),
            (package("a", Some("MIT"), Some("git+https://known")), "comes from git+https://known"),
            (package("a", Some("GPL-3.0"), known), "'GPL-3.0' is not among those"),
            (package("a", Some("MIT AND GPL-3.0"), known), "is not among those"),
            (package("a", Some("MIT OR"), known), "cannot be read"),
            (package("a", None, known), "names no licence"),
        ] {
            let name = bad.name.clone();
            let found = violations(vec![package("own", Some("MIT"), None), bad], vec![edge(&name, None)]);
            assert!(found.len() == 1 && found[0].contains(expected), "{expected}: {found:?}");
        }
    }

    #[test]
    fn licences_of_dev_dependencies_are_not_checked() {
        let of_tests = || package("a", Some("MPL-2.0"), Some("registry+https://known"));
        let with =
            |kind| violations(vec![package("own", Some("MIT"), None), of_tests()], vec![edge("a", kind)]);
        assert_eq!(with(Some("dev")), Vec::<String>::new());
        assert_eq!((with(Some("build")).len(), with(None).len()), (1, 1));
    }

    #[test]
    fn own_packages_must_not_use_wildcard_versions() {
        let on = |req: &str, path: Option<&str>| Dependency {
            name: "a".to_owned(),
            req: req.to_owned(),
            path: path.map(str::to_owned),
        };
        let own =
            |dependency| Package { dependencies: vec![dependency], ..package("own", Some("MIT"), None) };
        assert_eq!(violations(vec![own(on("^1", None))], vec![]), Vec::<String>::new());
        assert_eq!(violations(vec![own(on("*", Some("crates/a")))], vec![]), Vec::<String>::new());
        assert_eq!(violations(vec![own(on("*", None))], vec![]).len(), 1);
    }

    #[test]
    fn rules_that_are_not_enforced_here_are_rejected() {
        Rules::read(RULES).unwrap();
        for (from, to) in [
            ("multiple-versions = \"warn\"", "multiple-versions = \"deny\""),
            ("unknown-git = \"deny\"", "unknown-git = \"allow\""),
            ("allow = [\"MIT\"", "exceptions = []\nallow = [\"MIT\""),
            ("[graph]", "[advisories]\n[graph]"),
        ] {
            assert!(RULES.contains(from) && Rules::read(&RULES.replace(from, to)).is_err(), "{to}");
        }
    }
}
