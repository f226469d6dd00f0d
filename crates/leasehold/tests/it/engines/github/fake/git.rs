//! Git data of the repository: immutable commits, and refs that are created once and only move
//! forward.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

use leasehold::model::Timestamp;
use serde_json::{Value, json};

use super::description::Description;
use super::faults::StaleRefs;
use super::repo::Repo;
use super::server::{Answer, Request, refusal};

/// Git data of a repository.
#[derive(Debug, Clone, Default)]
pub(in crate::engines::github) struct Git {
    /// Whether the repository has no commit: then git calls fail.
    pub(in crate::engines::github) is_empty: bool,
    pub(in crate::engines::github) commits: BTreeMap<String, Commit>,
    /// Refs by their full names.
    pub(in crate::engines::github) refs: BTreeMap<String, String>,
    /// All tips that each ref has had, for stale reads.
    before: BTreeMap<String, Vec<String>>,
    /// Number of writes that were refused because the ref had moved.
    pub(in crate::engines::github) conflicts: u32,
}

#[derive(Debug, Clone, Hash)]
pub(in crate::engines::github) struct Commit {
    pub(in crate::engines::github) message: String,
    tree: String,
    pub(in crate::engines::github) parents: Vec<String>,
    author: String,
    date: u64,
}

const TREE: &str = "7ee00000000000000000000000000000000007ee";

impl Commit {
    /// Returns the hash. Two commits with the same content are the same commit, as in git.
    fn sha(&self) -> String {
        let part = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, self).hash(&mut hasher);
            hasher.finish()
        };
        let whole = format!("{:016x}{:016x}{:016x}", part(1), part(2), part(3));
        whole[..40].to_owned()
    }
}

impl Git {
    fn is_ancestor(&self, older: &str, newer: &str) -> bool {
        let mut left = vec![newer];
        while let Some(sha) = left.pop() {
            if sha == older {
                return true;
            }
            left.extend(
                self.commits.get(sha).into_iter().flat_map(|commit| &commit.parents).map(String::as_str),
            );
        }
        false
    }

    pub(in crate::engines::github) fn point(&mut self, name: &str, sha: &str) {
        self.refs.insert(name.to_owned(), sha.to_owned());
        self.before.entry(name.to_owned()).or_default().push(sha.to_owned());
    }

    /// Returns the tip that a reader gets, which may be an older one or none.
    fn tip(&self, name: &str, old: &mut StaleRefs) -> Option<String> {
        let now = self.refs.get(name).cloned();
        let before = self.before.get(name).map(Vec::as_slice).unwrap_or_default();
        match old {
            StaleRefs::Ago(reads, age) if *reads > 0 => {
                *reads -= 1;
                before.len().checked_sub(1 + *age).map(|position| before[position].clone())
            }
            StaleRefs::Chance(percent) if fastrand::u8(0..100) < *percent => {
                let position = fastrand::usize(0..=before.len());
                position.checked_sub(1).map(|position| before[position].clone())
            }
            _ => now,
        }
    }
}

/// Answers requests to `git/…`, and for the newest commit.
pub(super) fn answer(
    description: &Description,
    (repo, old): (&mut Repo, &mut StaleRefs),
    request: &Request,
    parts: &[&str],
    now: u64,
) -> Answer {
    if repo.git.is_empty {
        return refusal(409, "Git Repository is empty.");
    }
    if request.method != "GET" && !repo.can_push(&request.login) {
        return refusal(404, "Not Found");
    }
    let git = &mut repo.git;
    match (request.method.as_str(), parts) {
        ("GET", ["commits"]) => (200, Some(json!([newest(description)]))),
        ("POST", ["git", "commits"]) => create_commit(description, git, request, now),
        ("GET", ["git", "commits", sha]) => match git.commits.get(*sha) {
            Some(commit) => (200, Some(show_commit(description, sha, commit))),
            None => refusal(404, "Not Found"),
        },
        ("GET", ["git", "ref", name @ ..]) => {
            let name = format!("refs/{}", name.join("/"));
            match git.tip(&name, old) {
                Some(sha) => (200, Some(show_ref(description, &name, &sha))),
                None => refusal(404, "Not Found"),
            }
        }
        ("GET", ["git", "matching-refs", beginning @ ..]) => {
            let beginning = format!("refs/{}", beginning.join("/"));
            let names: Vec<_> =
                git.refs.keys().filter(|name| name.starts_with(&beginning)).cloned().collect();
            let shown = names
                .iter()
                .filter_map(|name| git.tip(name, old).map(|sha| show_ref(description, name, &sha)));
            (200, Some(Value::Array(shown.collect())))
        }
        ("POST", ["git", "refs"]) => {
            let (name, sha) = (request.text("ref"), request.text("sha"));
            if !git.commits.contains_key(&sha) {
                return refusal(422, "Object does not exist");
            }
            if git.refs.contains_key(&name) {
                git.conflicts += 1;
                return refusal(422, "Reference already exists");
            }
            git.point(&name, &sha);
            (201, Some(show_ref(description, &name, &sha)))
        }
        ("PATCH", ["git", "refs", name @ ..]) => {
            let (name, sha) = (format!("refs/{}", name.join("/")), request.text("sha"));
            let Some(tip) = git.refs.get(&name).cloned() else {
                return refusal(422, "Reference does not exist");
            };
            if !git.commits.contains_key(&sha) {
                return refusal(422, "Object does not exist");
            }
            if request.field("force") != &Value::Bool(true) && !git.is_ancestor(&tip, &sha) {
                git.conflicts += 1;
                return refusal(422, "Update is not a fast forward");
            }
            git.point(&name, &sha);
            (200, Some(show_ref(description, &name, &sha)))
        }
        _ => refusal(404, "Not Found"),
    }
}

fn create_commit(description: &Description, git: &mut Git, request: &Request, now: u64) -> Answer {
    let parents = request.field("parents").as_array().into_iter().flatten().filter_map(Value::as_str);
    let parents: Vec<_> = parents.map(str::to_owned).collect();
    let tree = request.text("tree");
    if tree != TREE {
        return refusal(422, "Tree SHA does not exist");
    }
    if parents.iter().any(|parent| !git.commits.contains_key(parent)) {
        return refusal(422, "Parent SHA does not exist or is not a commit object");
    }
    let message = request.text("message");
    let commit = Commit { message, tree, parents, author: request.login.clone(), date: now };
    let sha = commit.sha();
    let shown = show_commit(description, &sha, &commit);
    git.commits.insert(sha, commit);
    (201, Some(shown))
}

fn newest(description: &Description) -> Value {
    static SAMPLE: OnceLock<Value> = OnceLock::new();
    let mut shown = SAMPLE.get_or_init(|| description.sample("commit")).clone();
    shown["commit"]["tree"]["sha"] = json!(TREE);
    shown
}

fn show_commit(description: &Description, sha: &str, commit: &Commit) -> Value {
    static SAMPLE: OnceLock<Value> = OnceLock::new();
    let mut shown = SAMPLE.get_or_init(|| description.sample("git-commit")).clone();
    let parent = |sha: &String| {
        let url = "https://github.example/";
        json!({ "sha": sha, "url": url, "html_url": url })
    };
    shown["sha"] = json!(sha);
    shown["message"] = json!(commit.message);
    shown["tree"]["sha"] = json!(commit.tree);
    shown["parents"] = Value::Array(commit.parents.iter().map(parent).collect());
    shown["author"]["name"] = json!(commit.author);
    shown["author"]["date"] = json!(Timestamp::from_micros(commit.date * 1_000_000).to_string());
    shown
}

fn show_ref(description: &Description, name: &str, sha: &str) -> Value {
    static SAMPLE: OnceLock<Value> = OnceLock::new();
    let mut shown = SAMPLE.get_or_init(|| description.sample("git-ref")).clone();
    shown["ref"] = json!(name);
    shown["object"]["sha"] = json!(sha);
    shown["object"]["type"] = json!("commit");
    shown
}

/// Returns the user that sends the request.
pub(super) fn user(description: &Description, login: &str) -> Answer {
    let mut shown = description.sample("public-user");
    shown["login"] = json!(login);
    (200, Some(shown))
}
