//! Lines for people, on stderr: who, why, what to do next.

use std::fmt;
use std::io::Write;

/// Writes one line with our name before it, in one piece, so that it does not mix with what the command writes.
/// There is nobody to complain to when stderr is closed.
pub(super) fn say_line(line: fmt::Arguments<'_>) {
    let line = format!("leasehold: {line}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// [`say_line`] with a format.
macro_rules! say {
    ($($line:tt)*) => {
        $crate::run::say::say_line(format_args!($($line)*))
    };
}
pub(super) use say;
