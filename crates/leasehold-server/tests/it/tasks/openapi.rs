//! `OpenAPI` document of the task endpoints: complete enough to generate a client.

use std::collections::BTreeSet;

use leasehold_server::Server;
use serde_json::Value;

/// Collects every `$ref` under this value.
fn names(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(name)) = fields.get("$ref") {
                found.insert(name.clone());
            }
            fields.values().for_each(|value| names(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| names(value, found)),
        _ => {}
    }
}

#[test]
fn every_task_endpoint_is_described_and_every_reference_resolves() {
    let description: Value = serde_json::from_str(&Server::openapi()).unwrap();
    let (mut operations, mut without) = (BTreeSet::new(), Vec::new());
    for (path, methods) in description["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            if operation["tags"] != serde_json::json!(["tasks"]) {
                continue;
            }
            let name = operation["operationId"].as_str().unwrap();
            assert!(operations.insert(name.to_owned()), "{name} is there twice");
            let responses = operation["responses"].as_object().unwrap();
            let takes_values =
                operation.get("parameters").is_some() || operation.get("requestBody").is_some();
            for status in ["200", "400", "401", "403", "501", "503"] {
                if !responses.contains_key(status) && (status != "400" || takes_values) {
                    without.push(format!("{method} {path} {status}"));
                }
            }
            for (status, response) in responses.iter().filter(|(status, _)| !status.starts_with('2')) {
                let problem = &response["content"]["application/problem+json"]["schema"]["$ref"];
                assert_eq!(problem, "#/components/schemas/Problem", "{method} {path} {status}");
            }
            for name in path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()) {
                let params = operation["parameters"].as_array().unwrap();
                assert!(params.iter().any(|param| param["name"] == name), "{method} {path}: {name}");
            }
        }
    }
    assert_eq!(without, Vec::<String>::new());
    assert_eq!(operations.len(), 33, "{operations:?}");
    let mut used = BTreeSet::new();
    names(&description, &mut used);
    for name in used {
        let pointer = name.strip_prefix('#').unwrap();
        assert!(description.pointer(pointer).is_some(), "{name} leads nowhere");
    }
    let task = &description["components"]["schemas"]["TaskView"]["properties"];
    assert_eq!(task["createdAt"]["format"], "date-time");
    assert!(task["leaseExpiresAt"]["description"].is_string());
}
