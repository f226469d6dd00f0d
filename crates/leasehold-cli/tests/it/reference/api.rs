//! The page of the HTTP API, from the `OpenAPI` document of the server.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use leasehold_server::Server;
use serde_json::Value;

const START: &str = "# HTTP API

<!-- Generated from the OpenAPI document of the server by `cargo xtask docs --update`. Do not edit. -->

Every operation of the server, as `GET /openapi.json` describes it. [Over HTTP](../http.md) and [tasks over
HTTP](../http-tasks.md) show how to use them, [errors](../errors.md) explains each code. Requests carry
`Authorization: Bearer TOKEN`; the role is the minimum role of that token. Fields in **bold** are required.
Every operation may also return the problems 401 `UNAUTHENTICATED`, 403 `FORBIDDEN`, 429 `RATE_LIMITED`, 500
`INTERNAL` and 503 `STORE_UNAVAILABLE` or `DRAINING`.
";
/// Problems that the start of the page states for all operations.
const COMMON: [&str; 5] = ["401", "403", "429", "500", "503"];

pub(super) fn page() -> String {
    let document: Value = serde_json::from_str(&Server::openapi()).unwrap();
    let schemas = Schemas { all: &document["components"]["schemas"], named: RefCell::default() };
    let mut page = START.to_owned();
    let mut tags: BTreeMap<&str, Vec<(&str, &str, &Value)>> = BTreeMap::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let tag = operation["tags"][0].as_str().unwrap();
            tags.entry(tag).or_default().push((path, method, operation));
        }
    }
    for tag in document["tags"].as_array().unwrap() {
        let name = tag["name"].as_str().unwrap();
        let _ = write!(page, "\n## {name}\n\n{}.\n", prose(&tag["description"]));
        for (path, method, operation) in tags.remove(name).unwrap_or_default() {
            write_operation(&mut page, &schemas, &format!("{} {path}", method.to_uppercase()), operation);
        }
    }
    assert!(tags.is_empty(), "the document does not describe the tags {:?}", tags.keys());
    write_types(&mut page, &schemas);
    page
}

/// Writes the fields of every type that a table names, also of those that only other types name.
fn write_types(page: &mut String, schemas: &Schemas) {
    let mut types = BTreeMap::new();
    loop {
        let next = schemas.named.borrow().iter().find(|name| !types.contains_key(*name)).copied();
        let Some(name) = next else { break };
        types.insert(name, schemas.fields(&schemas.all[name]));
    }
    page.push_str("\n## Types\n");
    for (name, rows) in types {
        let _ = write!(page, "\n### {name}\n\n{}\n", prose(&schemas.all[name]["description"]));
        write_table(page, "field", &rows);
    }
}

fn write_operation<'a>(page: &mut String, schemas: &Schemas<'a>, heading: &str, operation: &'a Value) {
    let _ = write!(page, "\n### {heading}\n\n{}\n", prose(&operation["summary"]));
    if let Some(text) = operation["description"].as_str() {
        let _ = write!(page, "\n{}\n", text.trim());
    }
    let role = operation["security"].as_array().and_then(|ways| ways.iter().find_map(|way| way.get("token")));
    let role = role.and_then(|roles| roles[0].as_str()).unwrap_or("none");
    let _ = write!(page, "\nRole: {role}.\n");
    let parameters: Vec<_> = operation["parameters"].as_array().into_iter().flatten().collect();
    let mut rows = Vec::new();
    for parameter in parameters {
        let place = parameter["in"].as_str().unwrap();
        let name = name(parameter["name"].as_str().unwrap(), parameter["required"] == true);
        rows.push((
            format!("{name} ({place})"),
            schemas.type_of(&parameter["schema"]),
            prose(&parameter["description"]),
        ));
    }
    write_table(page, "parameter", &rows);
    if let Some(schema) = json_schema(&operation["requestBody"]) {
        write_body(page, schemas, "Request body", schema);
    }
    for (status, response) in operation["responses"].as_object().unwrap() {
        if let Some(schema) = json_schema(response).filter(|_| status.starts_with('2')) {
            write_body(page, schemas, &format!("Response {status}"), schema);
        }
    }
    let mut rows = Vec::new();
    for (status, response) in operation["responses"].as_object().unwrap() {
        if !COMMON.contains(&status.as_str()) {
            rows.push((status.clone(), prose(&response["description"])));
        }
    }
    page.push_str("\n| status | |\n|---|---|\n");
    for (status, text) in rows {
        let _ = writeln!(page, "| {status} | {} |", cell(&text));
    }
}

/// Writes the fields of a body, or its type if it has none.
fn write_body<'a>(page: &mut String, schemas: &Schemas<'a>, title: &str, schema: &'a Value) {
    let rows = schemas.fields(schema);
    if rows.is_empty() {
        let _ = write!(page, "\n{title}: {}.\n", schemas.type_of(schema));
    } else {
        let _ = write!(page, "\n{title}:\n");
        write_table(page, "field", &rows);
    }
}

fn write_table(page: &mut String, first: &str, rows: &[(String, String, String)]) {
    if rows.is_empty() {
        return;
    }
    let _ = write!(page, "\n| {first} | type | |\n|---|---|---|\n");
    for (name, kind, text) in rows {
        let _ = writeln!(page, "| {name} | {} | {} |", cell(kind), cell(text));
    }
}

fn json_schema(body: &Value) -> Option<&Value> {
    body["content"]["application/json"].get("schema")
}

fn name(name: &str, required: bool) -> String {
    if required { format!("**`{name}`**") } else { format!("`{name}`") }
}

/// Returns a text on one line.
fn prose(text: &Value) -> String {
    text.as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "\\<")
}

/// Schemas of the components, by name, and the names that the page has used.
struct Schemas<'a> {
    all: &'a Value,
    named: RefCell<BTreeSet<&'a str>>,
}

impl<'a> Schemas<'a> {
    /// Returns the schema that a reference names, and that name.
    fn resolve(&self, schema: &'a Value) -> (&'a Value, Option<&'a str>) {
        match schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            Some(name) => (&self.all[name], Some(name)),
            None => (schema, None),
        }
    }

    /// Returns the alternative that is not `null`.
    fn without_null(schema: &'a Value) -> &'a Value {
        let choices = schema["oneOf"].as_array().into_iter().flatten();
        let mut choices = choices.filter(|choice| choice["type"] != "null");
        match (choices.next(), choices.next()) {
            (Some(only), None) => only,
            _ => schema,
        }
    }

    /// Returns a short description of a type: `string`, `array of Task`, `"wait" | "retry"`.
    fn type_of(&self, schema: &'a Value) -> String {
        let (schema, name) = self.resolve(Self::without_null(schema));
        if let Some(values) = schema["enum"].as_array() {
            return values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(" or ");
        }
        if let Some(choices) = schema["oneOf"].as_array() {
            let choices: BTreeSet<_> = choices.iter().map(|choice| self.type_of(choice)).collect();
            return choices.into_iter().collect::<Vec<_>>().join(" or ");
        }
        let kinds: Vec<_> = match &schema["type"] {
            Value::Array(kinds) => {
                kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect()
            }
            kind => kind.as_str().into_iter().collect(),
        };
        match (kinds.as_slice(), name) {
            (["array"], _) => format!("array of {}", self.type_of(&schema["items"])),
            (["object"] | [], Some(name)) if !Self::fields_are_free(schema) => {
                self.named.borrow_mut().insert(name);
                format!("[{name}](#{})", name.to_lowercase())
            }
            ([], _) => "any JSON value".to_owned(),
            (kinds, _) => kinds.join(" or "),
        }
    }

    /// Whether a schema names no fields: any object or any value fits.
    fn fields_are_free(schema: &Value) -> bool {
        schema["properties"].is_null() && schema["allOf"].is_null()
    }

    /// Returns the fields of an object: name, type and description.
    fn fields(&self, schema: &'a Value) -> Vec<(String, String, String)> {
        let (schema, _) = self.resolve(Self::without_null(schema));
        let mut rows = Vec::new();
        for part in schema["allOf"].as_array().into_iter().flatten() {
            rows.extend(self.fields(part));
        }
        let required: Vec<_> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (field, value) in schema["properties"].as_object().into_iter().flatten() {
            let inner = Self::without_null(value);
            let described = [value, inner, self.resolve(inner).0];
            let text =
                described.iter().map(|schema| prose(&schema["description"])).find(|text| !text.is_empty());
            let is_required = required.contains(&field.as_str());
            rows.push((name(field, is_required), self.type_of(value), text.unwrap_or_default()));
        }
        rows
    }
}
