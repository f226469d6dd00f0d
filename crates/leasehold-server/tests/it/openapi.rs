//! `OpenAPI` document: it has every route, every name is unique, and clients can be generated from it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use leasehold::Leasehold;
use leasehold_server::{Access, Server};
use reqwest::Method;
use serde_json::{Value, json};

use crate::test_server::{Reply, TestServer};

const VERBS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

fn described() -> Value {
    serde_json::from_str(&Server::openapi()).unwrap()
}

/// Returns every path with every method in the document.
fn operations(description: &Value) -> Vec<(String, String, Value)> {
    let paths = description["paths"].as_object().unwrap().iter();
    paths
        .flat_map(|(path, item)| {
            let verbs = VERBS.iter().filter_map(|verb| Some((*verb, item.get(*verb)?.clone())));
            verbs.map(|(verb, operation)| (path.clone(), verb.to_owned(), operation)).collect::<Vec<_>>()
        })
        .collect()
}

/// Returns the sources that define routes and schemas.
fn sources() -> Vec<(PathBuf, String)> {
    fn read(folder: &Path, into: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, into);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                into.push((path, text));
            }
        }
    }
    let mut all = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in [root.join("src"), root.join("../leasehold/src/client")] {
        read(&folder, &mut all);
    }
    all
}

#[tokio::test]
async fn the_document_describes_exactly_the_served_routes() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let closed = TestServer::over(leasehold, Access::Tokens(Vec::new())).await;
    let response = closed.get("/openapi.json").await;
    assert_eq!((response.status, &response.body), (200, &described()));
    let server = TestServer::open().await;
    let description = described();
    let operations = operations(&description);
    assert!(operations.len() > 60, "{}", operations.len());
    for (path, verb, operation) in &operations {
        assert!(operation["operationId"].is_string() || path.ends_with('z'), "{verb} {path} has no name");
        assert!(operation["summary"].is_string() || operation["description"].is_string(), "{verb} {path}");
        if path == "/api/v1/events" {
            continue; // It would not end.
        }
        let at = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
        let method = Method::from_bytes(verb.to_uppercase().as_bytes()).unwrap();
        let request = server.request(method, &at.collect::<Vec<_>>().join("/"));
        let reply = Reply::of(request.json(&json!({ "nonsense": true }))).await;
        let code = reply.body["code"].as_str().unwrap_or("");
        assert!(code != "UNKNOWN_PATH" && code != "METHOD_NOT_ALLOWED", "{verb} {path}: {}", reply.body);
        assert!(reply.status < 500 || code == "NOT_SUPPORTED", "{verb} {path}: {}", reply.body);
    }
    // A route outside of the document would use `.route(`, as that of the document itself and the pages
    // of the dashboard do.
    let past = sources().into_iter().filter(|(_, text)| text.contains(".route(\""));
    let mut past: Vec<_> = past.map(|(path, _)| path.file_name().unwrap().to_owned()).collect();
    past.sort();
    assert_eq!(past, ["builder.rs", "router.rs"]);
}

#[tokio::test]
async fn the_document_of_an_open_server_requires_no_token() {
    let served = TestServer::open().await.get("/openapi.json").await.body;
    for ((path, verb, open), (_, _, closed)) in operations(&served).into_iter().zip(operations(&described()))
    {
        let mut security = closed["security"].as_array().unwrap().clone();
        if security != [json!({})] {
            security.push(json!({}));
        }
        assert_eq!(open["security"], json!(security), "{verb} {path}");
    }
}

#[test]
fn every_name_in_the_document_is_unique() {
    let mut places: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (path, text) in sources() {
        let mut pending = None;
        for line in text.lines() {
            if line.contains("ToSchema") && line.trim_start().starts_with("#[") {
                pending = Some(None);
            } else if let (Some(name), Some(_)) = (line.trim().strip_prefix("#[schema(as = "), &pending) {
                pending = Some(Some(name.trim_end_matches(")]").to_owned()));
            } else if let Some(given) = &pending {
                let mut words =
                    line.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
                if words.any(|word| word == "struct" || word == "enum")
                    && let Some(name) = words.next()
                {
                    places
                        .entry(given.clone().unwrap_or_else(|| name.to_owned()))
                        .or_default()
                        .push(path.clone());
                    pending = None;
                }
            }
        }
    }
    assert!(places.len() > 40, "{places:?}");
    let twice: Vec<_> = places.iter().filter(|(_, paths)| paths.len() > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    let (description, schemas) = (Server::openapi(), described()["components"]["schemas"].clone());
    for reference in description.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(schemas.get(name).is_some(), "{name} is not defined");
    }
    let mut names = BTreeMap::new();
    for (path, verb, operation) in operations(&described()) {
        if let Some(name) = operation["operationId"].as_str() {
            assert_eq!(names.insert(name.to_owned(), (path, verb)), None, "{name}");
        }
    }
}

/// Returns the Python interpreter with a client generator.
pub(crate) fn python() -> PathBuf {
    let python = std::env::var_os("LEASEHOLD_TEST_PYTHON");
    python.expect("LEASEHOLD_TEST_PYTHON is set by cargo xtask test and cargo xtask engines up").into()
}

#[tokio::test]
async fn a_generated_client_works() {
    let python = python();
    let folder = tempfile::tempdir().unwrap();
    let description = folder.path().join("openapi.json");
    std::fs::write(&description, Server::openapi()).unwrap();
    std::fs::write(folder.path().join("settings.yml"), "post_hooks: []\n").unwrap();
    let generate = ["-m", "openapi_python_client", "generate", "--fail-on-warning", "--meta", "none"];
    let mut made = tokio::process::Command::new(&python);
    made.args(generate).arg("--path").arg(&description);
    made.args(["--output-path", "leasehold_client", "--config", "settings.yml"]);
    let made = made.current_dir(folder.path()).output().await.unwrap();
    let said = |output: &std::process::Output| {
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    assert!(made.status.success(), "{}", said(&made));

    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let toml = "[workflows.deploy]\nrunner = \"external\"\n";
    let server = TestServer::configured(leasehold, Access::Open, toml).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/drive.py");
    let driven = tokio::process::Command::new(&python)
        .arg(script)
        .arg(&server.base)
        .env("PYTHONPATH", folder.path())
        .stdin(Stdio::null())
        .output();
    let driven = driven.await.unwrap();
    assert!(driven.status.success(), "{}", said(&driven));
    assert!(said(&driven).contains("driven"), "{}", said(&driven));
}
