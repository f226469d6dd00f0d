//! `cargo xtask docs`: builds the documentation as a site with mdBook, and checks every link of the site.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo::{cargo, start, wait};
use crate::check::links::{Page, find_pages, is_external, links, resolve};
use crate::engines::target;

/// Version that the site is tested with.
const MDBOOK: &str = "0.5.4";
/// Where links to files outside of `docs/` lead.
const REPOSITORY: &str = "https://github.com/leasehold/leasehold";

/// Options of `cargo xtask docs`.
#[derive(clap::Args)]
pub(crate) struct Docs {
    /// Rewrite the generated pages instead: the command line, the HTTP API, the roles
    #[arg(long)]
    update: bool,
}

pub(crate) fn run(root: &Path, args: &Docs) -> Result<()> {
    if args.update { update(root) } else { build(root) }
}

/// Builds the site, and prints the path of its first page. Fails if a link of the site is dead.
pub(crate) fn build(root: &Path) -> Result<()> {
    let mdbook = find_mdbook(root)?;
    let (source, site) = (target(root).join("docs-source"), target(root).join("site"));
    stage(root, &source)?;
    let status = Command::new(&mdbook).arg("build").arg(&source).arg("--dest-dir").arg(&site).status();
    ensure!(status.with_context(|| format!("cannot start {}", mdbook.display()))?.success(), "mdbook failed");
    let dead = dead_links(&site)?;
    ensure!(dead.is_empty(), "the site has dead links:\n{}", dead.join("\n"));
    println!("{}", site.join("index.html").display());
    Ok(())
}

/// Runs the tests that compare the generated pages, with permission to rewrite them.
fn update(root: &Path) -> Result<()> {
    for (package, filter) in [("leasehold-cli", "reference::"), ("leasehold-server", "security_roles::")] {
        let mut test =
            cargo(root, ["test", "--quiet", "--package", package, "--all-features", "--test", "it", filter]);
        let code = wait(&mut start(test.env("LEASEHOLD_WRITE_DOCS", "1"))?)?;
        ensure!(code == 0, "the tests of {package} that write pages fail");
    }
    Ok(())
}

/// Returns an installed mdBook of the right version, or installs one under `target/`.
fn find_mdbook(root: &Path) -> Result<PathBuf> {
    let tools = target(root).join("tools");
    let ours = tools.join("bin/mdbook");
    for program in [Path::new("mdbook"), &ours] {
        let output = Command::new(program).arg("--version").stderr(Stdio::null()).output();
        if output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(MDBOOK)) {
            return Ok(program.to_owned());
        }
    }
    println!("installing mdbook {MDBOOK} under {}", tools.display());
    // An unoptimized build takes a third of the time, and builds this site in seconds.
    let options = ["install", "mdbook", "--version", MDBOOK, "--locked", "--debug", "--root"];
    let mut install = cargo(root, options);
    install.arg(&tools).args(["--no-default-features", "--features", "search"]);
    ensure!(wait(&mut start(&mut install)?)? == 0, "mdbook {MDBOOK} cannot be installed");
    Ok(ours)
}

/// Copies `docs/` to a folder. Links to files outside of it lead to the repository, and a `README.md` is the
/// index of its folder.
fn stage(root: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("cannot remove {}", to.display()))?;
    }
    copy(&root.join("docs"), to)?;
    let mut pages = Vec::new();
    find_pages(root, "docs", &mut pages)?;
    for page in &pages {
        let copied = to.join(page.path.trim_start_matches("docs/"));
        fs::remove_file(&copied).with_context(|| format!("cannot remove {}", copied.display()))?;
        let path = to.join(as_index(page.path.trim_start_matches("docs/")));
        let text = with_site_links(page, |path| root.join(path).is_dir());
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Returns the path of a page in the site.
fn as_index(path: &str) -> String {
    let folder = path.strip_suffix("README.md").filter(|folder| folder.is_empty() || folder.ends_with('/'));
    folder.map_or_else(|| path.to_owned(), |folder| format!("{folder}index.md"))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let (source, copied) = (entry?.path(), to);
        let copied = copied.join(source.file_name().context("a file has no name")?);
        if source.is_dir() {
            copy(&source, &copied)?;
        } else {
            fs::copy(&source, &copied).with_context(|| format!("cannot copy {}", source.display()))?;
        }
    }
    Ok(())
}

/// Returns the text of a page with the links that it has in the site.
fn with_site_links(page: &Page, is_folder: impl Fn(&str) -> bool) -> String {
    let targets: BTreeSet<_> = links(&page.text).into_iter().map(|link| link.target).collect();
    let mut text = page.text.clone();
    for target in targets.iter().filter(|target| !is_external(target) && !target.starts_with('#')) {
        let file = target.split('#').next().unwrap_or_default();
        let anchor = &target[file.len()..];
        let Some(path) = resolve(&page.path, file) else { continue };
        let kind = if is_folder(&path) { "tree" } else { "blob" };
        let link = if path.starts_with("docs/") {
            format!("{}{anchor}", as_index(file))
        } else {
            format!("{REPOSITORY}/{kind}/main/{path}{anchor}")
        };
        text = text.replace(&format!("]({target})"), &format!("]({link})"));
    }
    text
}

/// Returns the links of a site to files and anchors that do not exist.
fn dead_links(site: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    read_pages(site, "", &mut pages)?;
    let mut dead = Vec::new();
    for (path, html) in &pages {
        for target in attributes(html, "href").chain(attributes(html, "src")) {
            if is_external(target) || target.starts_with("data:") || target == "#" {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = file.split('?').next().unwrap_or_default();
            let file = if file.is_empty() { Some(path.clone()) } else { resolve(path, file) };
            let Some(file) = file.filter(|file| site.join(file).exists()) else {
                dead.push(format!("{path}: {target}"));
                continue;
            };
            let has_anchor = |html: &String| attributes(html, "id").any(|id| id == anchor);
            if !anchor.is_empty() && !pages.get(&file).is_none_or(has_anchor) {
                dead.push(format!("{path}: {target}"));
            }
        }
    }
    Ok(dead)
}

/// Reads the pages of a site; the page for missing ones has absolute links, and is left out.
fn read_pages(site: &Path, folder: &str, pages: &mut BTreeMap<String, String>) -> Result<()> {
    for entry in fs::read_dir(site.join(folder)).with_context(|| format!("cannot list {}", site.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if entry.path().is_dir() {
            read_pages(site, &path, pages)?;
        } else if entry.path().extension().is_some_and(|extension| extension == "html") && name != "404.html"
        {
            pages.insert(path, fs::read_to_string(entry.path())?);
        }
    }
    Ok(())
}

/// Returns the values of an attribute.
fn attributes<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let opening = format!(" {name}=\"");
    let starts: Vec<_> = html.match_indices(&opening).map(|(at, opening)| at + opening.len()).collect();
    starts.into_iter().filter_map(|start| html[start..].split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_docs_lead_to_the_repository_and_readmes_are_indexes() {
        let text = "[a](a.md) [b](../README.md#c) [d](../crates) [e](https://x.y) [f](#g) [h](i/README.md#j) [k](README.md)";
        let page = Page { path: "docs/x.md".to_owned(), text: text.to_owned() };
        let expected = format!(
            "[a](a.md) [b]({REPOSITORY}/blob/main/README.md#c) [d]({REPOSITORY}/tree/main/crates) [e](https://x.y) \
             [f](#g) [h](i/index.md#j) [k](index.md)"
        );
        assert_eq!(with_site_links(&page, |path| path == "crates"), expected);
        assert_eq!(as_index("a/MY-README.md"), "a/MY-README.md");
    }

    #[test]
    fn dead_links_of_a_site_are_found() {
        let site = tempfile::tempdir().unwrap();
        fs::create_dir(site.path().join("a")).unwrap();
        fs::write(site.path().join("a/b.html"), "<h1 id=\"c\"></h1><a href=\"../d.html\">").unwrap();
        let links = "<a href=\"a/b.html#c\"><a class=\"x\" href=\"a/b.html#e\"><img src=\"f.svg\"><a href=\"https://x.y\">";
        fs::write(site.path().join("d.html"), links).unwrap();
        assert_eq!(dead_links(site.path()).unwrap(), ["d.html: a/b.html#e", "d.html: f.svg"]);
    }
}
