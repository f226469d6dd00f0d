//! Roles: every operation rejects the roles below the one in the `OpenAPI` document, and the
//! documentation has the same table.

use std::fmt::Write;
use std::path::Path;

use leasehold::Leasehold;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role, Server};
use reqwest::Method;
use serde_json::{Value, json};

use crate::test_server::TestServer;

/// Environment variable: if set, the test rewrites the page.
const WRITE: &str = "LEASEHOLD_WRITE_DOCS";
const ROLES: [Role; 4] = [Role::Reader, Role::Worker, Role::Operator, Role::Admin];

/// Operation with its minimum role; `None` if it is public.
struct Operation {
    tag: String,
    id: String,
    method: String,
    path: String,
    role: Option<Role>,
    /// Whether callers without a token may use the operation, too.
    is_open: bool,
}

fn operations() -> Vec<Operation> {
    let description: Value = serde_json::from_str(&Server::openapi()).unwrap();
    let mut operations = Vec::new();
    for (path, item) in description["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let ways =
                operation["security"].as_array().unwrap_or_else(|| panic!("{method} {path} names no role"));
            let role = ways.iter().find_map(|way| way.get("token")).map(|roles| {
                assert_eq!(roles.as_array().unwrap().len(), 1, "{method} {path}");
                roles[0].as_str().unwrap().parse().unwrap()
            });
            operations.push(Operation {
                tag: operation["tags"][0].as_str().unwrap().to_owned(),
                id: operation["operationId"].as_str().unwrap().to_owned(),
                method: method.to_uppercase(),
                path: path.clone(),
                role,
                is_open: ways.iter().any(|way| *way == json!({})),
            });
        }
    }
    operations
}

#[tokio::test]
async fn every_operation_refuses_the_roles_below_its_own_and_no_others() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token_store = TokenStore::new(leasehold.clone());
    let toml =
        "[workflows.deploy]\nrunner = \"external\"\n[triggers.x]\nworkflow = \"deploy\"\nscheme = \"none\"\n";
    let mut server = TestServer::configured(leasehold, Access::Tokens(Vec::new()), toml).await;
    let operations = operations();
    assert!(operations.len() > 60, "{}", operations.len());
    let id = uuid::Uuid::from_u128(1).to_string();
    let request = |server: &TestServer, operation: &Operation| {
        let fill = |part: &str| match part {
            "{id}" if operation.path.starts_with("/api/v1/executions/") => format!("exec_{id}"),
            "{id}" => id.clone(),
            "{call}" => "now".to_owned(),
            part if part.starts_with('{') => "x".to_owned(),
            part => part.to_owned(),
        };
        let path = operation.path.split('/').map(fill).collect::<Vec<_>>().join("/");
        let method = Method::from_bytes(operation.method.as_bytes()).unwrap();
        // A Terraform client with `Who`: without it, the request would unlock by force.
        let body = json!({ "ID": id, "Who": "ada" });
        server.request(method, &path).header("leasehold-protocol", "1").json(&body).send()
    };
    for operation in operations.iter().filter(|operation| !(operation.is_open && operation.role.is_some())) {
        let status = request(&server, operation).await.unwrap().status();
        assert_eq!(status == 401, !operation.is_open, "{}: {status} without a token", operation.id);
    }
    for role in ROLES {
        server.use_token(&token_store.create(&format!("the-{role}"), role, None).await.unwrap().text);
        for operation in &operations {
            // Does not read the body: some responses do not end.
            let status = request(&server, operation).await.unwrap().status();
            let is_refused = operation.role.is_some_and(|least| role < least);
            assert_eq!(status == 403, is_refused, "{}: {status} for the {role}", operation.id);
            assert_ne!(status, 401, "{} for the {role}", operation.id);
        }
    }
}

#[test]
fn the_documentation_has_the_roles_of_the_description() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security-roles.md");
    let written = std::fs::read_to_string(&page).unwrap_or_default();
    let (before, after) =
        ("<!-- operations: from the description of the API -->\n", "<!-- end of operations -->");
    let (head, rest) = written.split_once(before).expect("the page has a place for the table");
    let (_, tail) = rest.split_once(after).expect("the table ends");
    let wanted = format!("{head}{before}{}{after}{tail}", table());
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&page, &wanted).unwrap();
        return;
    }
    assert!(wanted == written, "docs/security-roles.md is not what the API is: run this test with {WRITE}=1");
}

fn table() -> String {
    let mut text = String::new();
    let mut operations = operations();
    operations
        .sort_by(|one, two| (&one.tag, &one.path, &one.method).cmp(&(&two.tag, &two.path, &two.method)));
    let mut tag = String::new();
    for Operation { tag: of, id, method, path, role, is_open } in &operations {
        if tag != *of {
            tag.clone_from(of);
            let _ = write!(text, "\n## {tag}\n\n| operation | | least role |\n|---|---|---|\n");
        }
        let role = match (role, is_open) {
            (Some(role), false) => role.to_string(),
            (Some(role), true) => format!("public with a signature, else {role}"),
            (None, _) => "public".to_owned(),
        };
        let _ = writeln!(text, "| `{method} {path}` | {id} | {role} |");
    }
    text.push('\n');
    text
}
