//! A bar on stderr for what takes long: on a terminal only.

use std::io::{self, IsTerminal, Write};

use super::printer::Printer;

/// So wide is the bar itself.
const WIDTH: u64 = 30;

/// How far something has come.
pub(crate) struct Progress {
    on: bool,
    what: &'static str,
    of: Option<u64>,
    done: u64,
}

impl Progress {
    /// `of` is how much there is, if that is known.
    pub(crate) fn new(printer: Printer, what: &'static str, of: Option<u64>) -> Self {
        let on = !printer.json && !printer.quiet && io::stderr().is_terminal();
        Self { on, what, of, done: 0 }
    }

    /// So much more is done.
    pub(crate) fn add(&mut self, more: u64) {
        self.done += more;
        if self.on {
            // There is nobody to complain to when stderr is closed.
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

/// The line is for as long as it lasts.
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
    fn a_bar_fills_up_where_the_end_is_known() {
        let mut progress = Progress { on: false, what: "adding", of: Some(1000), done: 0 };
        progress.add(500);
        assert_eq!(progress.line(), format!("adding {}{} 500/1000", "█".repeat(15), "░".repeat(15)));
        progress.of = None;
        assert_eq!(progress.line(), "adding 500");
    }
}
