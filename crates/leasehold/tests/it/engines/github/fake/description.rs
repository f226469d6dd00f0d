//! Official description of the API: which requests and responses are valid.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, OnceLock};

use jsonschema::{Draft, Validator};
use serde_json::{Map, Value, json};

/// Parts of the description that the tests use.
pub(super) struct Description {
    paths: Value,
    components: Value,
    validators: Mutex<BTreeMap<String, &'static Validator>>,
}

/// Statuses that every operation may return, described or not.
const ALWAYS: [u16; 9] = [401, 403, 404, 410, 429, 500, 502, 503, 504];

const PATHS: [&str; 15] = [
    "/app",
    "/app/installations/{installation_id}/access_tokens",
    "/rate_limit",
    "/repos/{owner}/{repo}",
    "/repos/{owner}/{repo}/assignees/{assignee}",
    "/repos/{owner}/{repo}/issues",
    "/repos/{owner}/{repo}/issues/comments",
    "/repos/{owner}/{repo}/issues/comments/{comment_id}",
    "/repos/{owner}/{repo}/issues/{issue_number}",
    "/repos/{owner}/{repo}/issues/{issue_number}/assignees",
    "/repos/{owner}/{repo}/issues/{issue_number}/comments",
    "/repos/{owner}/{repo}/issues/{issue_number}/events",
    "/repos/{owner}/{repo}/issues/{issue_number}/labels",
    "/repos/{owner}/{repo}/issues/{issue_number}/labels/{name}",
    "/user",
];

/// Paths of git. A `{ref}` contains slashes.
const GIT_PATHS: [&str; 7] = [
    "/repos/{owner}/{repo}/commits",
    "/repos/{owner}/{repo}/git/commits",
    "/repos/{owner}/{repo}/git/commits/{commit_sha}",
    "/repos/{owner}/{repo}/git/matching-refs/{ref}",
    "/repos/{owner}/{repo}/git/ref/{ref}",
    "/repos/{owner}/{repo}/git/refs",
    "/repos/{owner}/{repo}/git/refs/{ref}",
];

fn all_paths() -> impl Iterator<Item = &'static str> {
    PATHS.into_iter().chain(GIT_PATHS)
}

/// Returns one description for all tests of this process, because it has 13 MB.
pub(super) fn description() -> &'static Description {
    static DESCRIPTION: OnceLock<Description> = OnceLock::new();
    DESCRIPTION.get_or_init(|| Description::load(&crate::engines::support::engine_at("github-openapi")))
}

impl Description {
    fn load(file: &str) -> Self {
        let text = std::fs::read_to_string(file).expect("the description can be read");
        let whole: Value = serde_json::from_str(&text).expect("the description is JSON");
        let paths: Map<_, _> =
            all_paths().map(|path| (path.to_owned(), whole["paths"][path].clone())).collect();
        let mut components = whole["components"].clone();
        nullable(&mut components["schemas"]);
        let mut paths = Value::Object(paths);
        nullable(&mut paths);
        Self { paths, components, validators: Mutex::default() }
    }

    /// Returns what is wrong with a request; empty if it is valid.
    pub(super) fn check_request(
        &self,
        method: &str,
        path: &str,
        query: &[String],
        body: Option<&Value>,
    ) -> Vec<String> {
        let Some((template, operation)) = self.operation(method, path) else {
            return vec![format!("{method} {path} is not described")];
        };
        let mut violations = Vec::new();
        let known: BTreeSet<String> =
            operation["parameters"].as_array().into_iter().flatten().map(|given| self.name(given)).collect();
        violations.extend(
            query
                .iter()
                .filter(|name| !known.contains(*name))
                .map(|name| format!("{template}: no parameter {name}")),
        );
        match (&operation["requestBody"]["content"]["application/json"]["schema"], body) {
            (Value::Null, Some(_)) => violations.push(format!("{method} {template} takes no body")),
            (Value::Null, None) => {}
            (schema, body) => violations.extend(self.check(
                &format!("{method} {template}"),
                schema,
                body.unwrap_or(&Value::Null),
            )),
        }
        violations
    }

    /// Returns what is wrong with a response.
    pub(super) fn check_response(
        &self,
        method: &str,
        path: &str,
        status: u16,
        body: Option<&Value>,
    ) -> Vec<String> {
        let Some((template, operation)) = self.operation(method, path) else { return Vec::new() };
        let (what, code) = (format!("{method} {template} {status}"), status.to_string());
        let mut answer = &operation["responses"][code.as_str()];
        if let Some(name) =
            answer["$ref"].as_str().and_then(|name| name.strip_prefix("#/components/responses/"))
        {
            answer = &self.components["responses"][name];
        }
        match (answer, body) {
            (Value::Null, _) if ALWAYS.contains(&status) => Vec::new(),
            (Value::Null, _) => vec![format!("{what} is not described")],
            (answer, body) => match &answer["content"]["application/json"]["schema"] {
                Value::Null if body.is_some() => vec![format!("{what} has no body")],
                Value::Null => Vec::new(),
                schema => self.check(&what, schema, body.unwrap_or(&Value::Null)),
            },
        }
    }

    /// Returns the smallest value that matches a schema; the caller fills in the fields that
    /// matter.
    pub(super) fn sample(&self, name: &str) -> Value {
        self.minimal(&self.components["schemas"][name])
    }

    fn minimal(&self, schema: &Value) -> Value {
        if let Some(name) = schema["$ref"].as_str() {
            return self.sample(name.rsplit('/').next().expect("a name"));
        }
        if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
            return first.clone();
        }
        for several in ["anyOf", "oneOf"] {
            if let Some(schemas) = schema[several].as_array() {
                let null = schemas.iter().find(|schema| schema["type"] == "null");
                return null.map_or_else(|| self.minimal(&schemas[0]), |_| Value::Null);
            }
        }
        if let Some(schemas) = schema["allOf"].as_array() {
            return self.minimal(&schemas[0]);
        }
        let kind =
            if schema["type"].is_array() { "null" } else { schema["type"].as_str().unwrap_or("object") };
        match (kind, schema["format"].as_str()) {
            ("null", _) => Value::Null,
            ("string", Some("date-time")) => json!("2020-01-01T00:00:00Z"),
            ("string", Some("uri")) => json!("https://github.example/"),
            ("string", _) => json!("x"),
            ("integer" | "number", _) => json!(1),
            ("boolean", _) => json!(false),
            ("array", _) => json!([]),
            _ => {
                let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
                let filled =
                    required.map(|name| (name.to_owned(), self.minimal(&schema["properties"][name])));
                Value::Object(filled.collect())
            }
        }
    }

    fn operation(&self, method: &str, path: &str) -> Option<(&'static str, &Value)> {
        let parts: Vec<_> = path.split('/').collect();
        let fits = |template: &str| {
            let template: Vec<_> = template.split('/').collect();
            let is_long_enough = match template.last() {
                Some(&"{ref}") => template.len() <= parts.len(),
                _ => template.len() == parts.len(),
            };
            is_long_enough
                && template.iter().zip(&parts).all(|(one, other)| one.starts_with('{') || one == other)
        };
        // Take the path with the fewest parameters: `issues/comments/5` is not the issue
        // `comments`.
        let template = all_paths()
            .filter(|template| fits(template))
            .min_by_key(|template| template.matches('{').count())?;
        let operation = &self.paths[template][method.to_lowercase()];
        operation.is_object().then_some((template, operation))
    }

    fn name(&self, parameter: &Value) -> String {
        let referred =
            parameter["$ref"].as_str().and_then(|name| name.strip_prefix("#/components/parameters/"));
        let parameter = referred.map_or(parameter, |name| &self.components["parameters"][name]);
        parameter["name"].as_str().unwrap_or_default().to_owned()
    }

    fn check(&self, what: &str, schema: &Value, body: &Value) -> Vec<String> {
        let validator = {
            let mut validators = self.validators.lock().unwrap();
            *validators.entry(what.to_owned()).or_insert_with(|| Box::leak(Box::new(self.validator(schema))))
        };
        validator
            .iter_errors(body)
            .map(|error| format!("{what}: {error} at {}", error.instance_path()))
            .collect()
    }

    fn validator(&self, schema: &Value) -> Validator {
        let mut needed = BTreeSet::new();
        self.collect(schema, &mut needed);
        let schemas: Map<_, _> = needed
            .into_iter()
            .map(|name| (name.clone(), self.components["schemas"][&name].clone()))
            .collect();
        let whole = json!({ "components": { "schemas": schemas }, "allOf": [schema] });
        jsonschema::options()
            .with_draft(Draft::Draft4)
            .should_validate_formats(true)
            .build(&whole)
            .expect("the description is made of schemas")
    }

    /// Returns the schemas that this one refers to, directly and indirectly.
    fn collect(&self, schema: &Value, needed: &mut BTreeSet<String>) {
        match schema {
            Value::Object(fields) => {
                if let Some(name) = fields.get("$ref").and_then(Value::as_str) {
                    let name = name.rsplit('/').next().expect("a name").to_owned();
                    if needed.insert(name.clone()) {
                        self.collect(&self.components["schemas"][&name], needed);
                    }
                }
                fields.values().for_each(|field| self.collect(field, needed));
            }
            Value::Array(items) => items.iter().for_each(|item| self.collect(item, needed)),
            _ => {}
        }
    }
}

/// Converts `nullable: true`, with which this description says that a value may be null.
fn nullable(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(nullable);
            if fields.get("nullable") == Some(&Value::Bool(true)) {
                fields.remove("nullable");
                let plain = Value::Object(fields.clone());
                *schema = json!({ "anyOf": [plain, { "type": "null" }] });
            }
        }
        Value::Array(items) => items.iter_mut().for_each(nullable),
        _ => {}
    }
}
