//! Progress bar on stderr for long operations: on a terminal only.

use std::io::{self, IsTerminal, Write};

use super::printer::Printer;

/// Width of the bar, in characters.
const WIDTH: u64 = 30;

/// Progress of an operation.
pub(crate) struct Progress {
    on: bool,
    what: &'static str,
    of: Option<u64>,
    done: u64,
}

impl Progress {
    /// Creates a bar at zero. `of` is the total, if known.
    pub(crate) fn new(printer: Printer, what: &'static str, of: Option<u64>) -> Self {
        let on = !printer.json && !printer.quiet && io::stderr().is_terminal();
        Self { on, what, of, done: 0 }
    }

    /// Advances the bar by `more`.
    pub(crate) fn add(&mut self, more: u64) {
        self.done += more;
        if self.on {
            // If stderr is closed there is no other place to report the error.
            let _ = write!(io::stderr(), "\r\x1b[K{}", self.line());
        }
    }

    fn line(&self) -> String {
        let Self { what, of, done, .. } = self;
        match of {
            Some(of) if of > done => {
                let full = done * WIDTH / of;
                let bar: String = (0..WIDTH).map(|at| if at < full { '█' } else { '░' }).collect();
                format!("{what} {bar} {done}/{of}")
            }
            _ => format!("{what} {done}"),
        }
    }
}

/// Clears the line at the end.
impl Drop for Progress {
    fn drop(&mut self) {
        if self.on && self.done > 0 {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_with_a_known_total_fills_up() {
        let mut progress = Progress { on: false, what: "adding", of: Some(1000), done: 0 };
        progress.add(500);
        assert_eq!(progress.line(), format!("adding {}{} 500/1000", "█".repeat(15), "░".repeat(15)));
        progress.of = None;
        assert_eq!(progress.line(), "adding 500");
    }
}
