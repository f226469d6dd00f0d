//! Rules for the documentation: every link leads to a file and a heading that exist, and the table of
//! contents of the site has every page once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::source::Violation;

const CONTENTS: &str = "docs/SUMMARY.md";

/// Page in Markdown: its path from the root of the repository, and its text.
pub(crate) struct Page {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Link of a page: the line that it is on, and its target.
#[derive(Debug, PartialEq)]
pub(crate) struct Link {
    pub(crate) line: usize,
    pub(crate) target: String,
}

/// Returns the violations of all pages of the repository.
pub(super) fn violations(root: &Path) -> Result<Vec<Violation>> {
    let mut pages = Vec::new();
    find_pages(root, "", &mut pages)?;
    Ok(check(&pages, |path| root.join(path).exists()))
}

/// Reads the pages of a folder and of its subfolders.
pub(crate) fn find_pages(root: &Path, folder: &str, pages: &mut Vec<Page>) -> Result<()> {
    let cannot_list = || format!("cannot list {}", root.join(folder).display());
    for entry in fs::read_dir(root.join(folder)).with_context(cannot_list)? {
        let entry = entry.with_context(cannot_list)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        let is_folder = entry.file_type().with_context(cannot_list)?.is_dir();
        if is_folder && !name.starts_with('.') && !["target", "node_modules"].contains(&name.as_str()) {
            find_pages(root, &path, pages)?;
        } else if !is_folder && Path::new(&name).extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(entry.path()).with_context(|| format!("cannot read {path}"))?;
            pages.push(Page { path, text });
        }
    }
    Ok(())
}

fn check(pages: &[Page], exists: impl Fn(&str) -> bool) -> Vec<Violation> {
    let anchors: BTreeMap<_, _> =
        pages.iter().map(|page| (page.path.as_str(), anchors(&page.text))).collect();
    let mut all = Vec::new();
    for page in pages {
        for link in links(&page.text) {
            if let Err(text) = check_link(page, &link.target, &anchors, &exists) {
                all.push(Violation { path: page.path.clone(), line: link.line, text });
            }
        }
    }
    all.extend(check_contents(pages));
    all
}

fn check_link(
    page: &Page,
    target: &str,
    anchors: &BTreeMap<&str, BTreeSet<String>>,
    exists: impl Fn(&str) -> bool,
) -> Result<(), String> {
    if is_external(target) {
        return Ok(());
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { Some(page.path.clone()) } else { resolve(&page.path, file) };
    let path = path.ok_or_else(|| format!("the link {target} leads out of the repository"))?;
    if !exists(&path) {
        return Err(format!("the link {target} leads to no file: there is no {path}"));
    }
    match (anchor, anchors.get(path.as_str())) {
        (Some(anchor), Some(known)) if !known.contains(anchor) => {
            Err(format!("the link {target} leads to no heading: {path} has no #{anchor}"))
        }
        _ => Ok(()),
    }
}

/// Every page of the site is in the table of contents, once.
fn check_contents(pages: &[Page]) -> Vec<Violation> {
    let Some(contents) = pages.iter().find(|page| page.path == CONTENTS) else { return Vec::new() };
    let mut listed: BTreeMap<String, usize> = BTreeMap::new();
    let mut all = Vec::new();
    for link in links(&contents.text) {
        let path = resolve(CONTENTS, &link.target).unwrap_or_default();
        if listed.insert(path.clone(), link.line).is_some() {
            let text = format!("{path} is in the table of contents twice: remove one of the lines");
            all.push(Violation { path: CONTENTS.to_owned(), line: link.line, text });
        }
    }
    for page in pages.iter().filter(|page| page.path.starts_with("docs/") && page.path != CONTENTS) {
        if !listed.contains_key(&page.path) {
            let text = format!("{} is not in the table of contents: add it", page.path);
            all.push(Violation { path: CONTENTS.to_owned(), line: 1, text });
        }
    }
    all
}

/// Whether a link leads to another site.
pub(crate) fn is_external(target: &str) -> bool {
    ["http://", "https://", "mailto:"].iter().any(|scheme| target.starts_with(scheme))
}

/// Returns the path of a link's target from the root of the repository; `None` outside of it.
pub(crate) fn resolve(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    Some(parts.join("/"))
}

/// Returns the links and images of a page.
pub(crate) fn links(text: &str) -> Vec<Link> {
    let mut links = Vec::new();
    for (line, text) in prose_lines(text) {
        let text = without_code(text);
        for (at, opening) in text.match_indices("](") {
            let rest = &text[at + opening.len()..];
            let Some(end) = rest.find(')') else { continue };
            let target = rest[..end].split_whitespace().next().unwrap_or_default();
            links.push(Link { line, target: target.to_owned() });
        }
    }
    links
}

/// Returns the anchors of a page, as GitHub and mdBook derive them from its headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose_lines(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let anchor = anchor(heading.trim());
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(numbered).find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let is_kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    heading.to_lowercase().chars().filter(is_kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the lines outside of code blocks, with their numbers.
fn prose_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Blanks code in a line.
fn without_code(line: &str) -> String {
    let mut is_code = false;
    line.split('`').fold(String::new(), |mut text, part| {
        if !is_code {
            text += part;
        }
        is_code = !is_code;
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(path: &str, text: &str) -> Page {
        Page { path: path.to_owned(), text: text.to_owned() }
    }

    fn found(pages: &[Page]) -> Vec<String> {
        let files = ["docs/a.md", "docs/b.md", "README.md", "src", "docs/SUMMARY.md"];
        check(pages, |path| files.contains(&path)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_link_to_what_exists_is_fine() {
        let a = "# A\n## `run`, and more\n[b](b.md#x-1) [up](../README.md) [code](../src) [x](https://x.y/z#q)\n[self](#run-and-more)";
        let b = "# x\n# x\n```sh\n[no](link.md)\n# no heading\n```\n`[no](link.md)` ![image](a.md \"title\")";
        assert_eq!(found(&[page("docs/a.md", a), page("docs/b.md", b), page("README.md", "")]), [""; 0]);
    }

    #[test]
    fn a_link_to_what_does_not_exist_is_named_with_its_line() {
        let a = "# A\n[c](c.md)\n[b](b.md#y)\n[out](../../x)\n[self](#b)";
        let found = found(&[page("docs/a.md", a), page("docs/b.md", "# x")]);
        let starts = [
            "docs/a.md:2: the link c.md leads to no file",
            "docs/a.md:3: the link b.md#y leads to no heading",
            "docs/a.md:4: the link ../../x leads out",
            "docs/a.md:5: the link #b leads to no heading",
        ];
        assert_eq!(found.len(), starts.len(), "{found:?}");
        for (found, start) in found.iter().zip(starts) {
            assert!(found.starts_with(start), "{found}");
        }
    }

    #[test]
    fn the_contents_have_each_page_once() {
        let pages = |contents: &str| {
            found(&[
                page("docs/a.md", ""),
                page("docs/b.md", ""),
                page("README.md", ""),
                page(CONTENTS, contents),
            ])
        };
        assert_eq!(pages("- [A](a.md)\n  - [B](b.md)\n"), [""; 0]);
        let both = pages("- [A](a.md)\n- [A](a.md)\n");
        assert!(
            both[0].starts_with("docs/SUMMARY.md:2: docs/a.md is in the table of contents twice"),
            "{both:?}"
        );
        assert!(both[1].starts_with("docs/SUMMARY.md:1: docs/b.md is not in"), "{both:?}");
    }
}
