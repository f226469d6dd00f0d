//! Checks that every error code of the library is documented in `docs/errors.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const FAMILIES: [&str; 5] = ["STORE_", "POSTGRES_", "REDIS_", "DYNAMODB_", "LOCK_"];

#[test]
fn every_code_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut codes = BTreeSet::new();
    collect(&root.join("src"), &mut codes);
    assert!(codes.len() > 10, "only {codes:?} were found");
    let page = fs::read_to_string(root.join("../../docs/errors.md")).unwrap();
    let missing: Vec<_> = codes.iter().filter(|code| !page.contains(code.as_str())).collect();
    assert!(missing.is_empty(), "not in docs/errors.md: {missing:?}");
}

/// Collects the string literals that look like an error code.
fn collect(folder: &Path, codes: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, codes);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let is_code = |text: &&str| {
                FAMILIES.iter().any(|family| text.starts_with(family))
                    && text.chars().all(|c| c.is_ascii_uppercase() || c == '_')
            };
            codes.extend(text.split('"').filter(is_code).map(str::to_owned));
        }
    }
}
