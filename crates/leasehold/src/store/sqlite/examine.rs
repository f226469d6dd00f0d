//! What the file finds out about itself for `leasehold doctor`.

use std::path::Path;

use crate::store::Finding;

/// Whoever can read the file sees who holds what; whoever can write it can take any lock.
#[cfg(unix)]
pub(super) fn examine(path: &Path) -> Vec<Finding> {
    use std::os::unix::fs::PermissionsExt;

    const NAME: &str = "permissions";
    let Ok(found) = std::fs::metadata(path) else {
        return Vec::new();
    };
    let mode = found.permissions().mode() & 0o777;
    let others = mode & 0o077;
    if others == 0 {
        return vec![Finding::ok(NAME, format!("only its owner can use it (mode {mode:03o})"))];
    }
    let what = if others & 0o022 == 0 { "read" } else { "change" };
    let detail = format!("others than its owner can {what} it (mode {mode:03o})");
    let file = path.display().to_string().replace('\'', "'\\''");
    let hint = format!("unless that is wanted: chmod 600 '{file}'");
    vec![Finding::concern(NAME, detail, "STORE_OPEN_TO_OTHERS", hint)]
}

#[cfg(not(unix))]
pub(super) fn examine(_path: &Path) -> Vec<Finding> {
    Vec::new()
}
