//! Status messages on stderr: the holder, the reason, the next step. With `--json` each message is
//! an object on a line of its own.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::output::to_line;

/// Whether messages are printed as JSON. Set before the first fork, so that all processes of a run
/// inherit the value.
static FOR_PROGRAMS: AtomicBool = AtomicBool::new(false);

pub(super) fn say_to_programs(json: bool) {
    FOR_PROGRAMS.store(json, Ordering::Relaxed);
}

/// Message in JSON form.
#[derive(Serialize)]
struct Line {
    event: &'static str,
    message: String,
}

/// Writes one line, prefixed with the program name, in a single write so that the line does not mix
/// with output of the command. A write error is ignored: if stderr is closed there is no other
/// place to report it.
pub(super) fn say_line(line: fmt::Arguments<'_>) {
    let text = if FOR_PROGRAMS.load(Ordering::Relaxed) {
        to_line(&Line { event: "message", message: line.to_string() }).unwrap_or_default() + "\n"
    } else {
        format!("leasehold: {line}\n")
    };
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// [`say_line`] with format arguments.
macro_rules! say {
    ($($line:tt)*) => {
        $crate::run::say::say_line(format_args!($($line)*))
    };
}
pub(super) use say;
