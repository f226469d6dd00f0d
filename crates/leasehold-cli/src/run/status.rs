//! Status messages on stderr: the holder, the reason, the next step. With `--json` each message is
//! an object on a line of its own.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::output::{to_line, write_if_read};

/// Whether messages are printed as JSON. Set before the first fork, so that all processes of a run
/// inherit the value.
static AS_JSON: AtomicBool = AtomicBool::new(false);

pub(super) fn set_json(json: bool) {
    AS_JSON.store(json, Ordering::Relaxed);
}

/// Writes one line, prefixed with the program name, in a single write so that the line does not mix with
/// output of the command. The line is dropped if stderr is not read: the processes that call this end the command
/// in time, and must not wait for a reader.
pub(super) fn write_status(line: fmt::Arguments<'_>) {
    let text = if AS_JSON.load(Ordering::Relaxed) {
        to_line(&json!({ "event": "message", "message": line.to_string() })).unwrap_or_default() + "\n"
    } else {
        format!("leasehold: {line}\n")
    };
    write_if_read(text.as_bytes());
}

/// [`write_status`] with format arguments.
macro_rules! status {
    ($($line:tt)*) => {
        $crate::run::status::write_status(format_args!($($line)*))
    };
}
pub(super) use status;
