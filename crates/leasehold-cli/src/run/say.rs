//! Lines for people, on stderr: who, why, what to do next. With `--json` each is an object on a line of its own.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::output::to_line;

/// Whether lines are for programs. It is set before the first fork, so that all processes of a run know it.
static FOR_PROGRAMS: AtomicBool = AtomicBool::new(false);

pub(super) fn say_to_programs(json: bool) {
    FOR_PROGRAMS.store(json, Ordering::Relaxed);
}

/// A line for programs.
#[derive(Serialize)]
struct Line {
    event: &'static str,
    message: String,
}

/// Writes one line with our name before it, in one piece, so that it does not mix with what the command writes.
/// There is nobody to complain to when stderr is closed.
pub(super) fn say_line(line: fmt::Arguments<'_>) {
    let text = if FOR_PROGRAMS.load(Ordering::Relaxed) {
        to_line(&Line { event: "message", message: line.to_string() }).unwrap_or_default() + "\n"
    } else {
        format!("leasehold: {line}\n")
    };
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// [`say_line`] with a format.
macro_rules! say {
    ($($line:tt)*) => {
        $crate::run::say::say_line(format_args!($($line)*))
    };
}
pub(super) use say;
