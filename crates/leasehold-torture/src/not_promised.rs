//! What an engine does not promise, whatever a run has shown: the last line of a report.

use std::fmt;

use serde::Serialize;

use crate::history::Header;

/// What an engine does not promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotPromised {
    /// Promises that the engine does not make.
    pub limits: Vec<&'static str>,
    /// Page that explains them.
    pub see: &'static str,
}

const SEE: &str = "docs/promises.md#what-it-does-not-promise";

/// Limits of the engines by their name in the URL. The pages of `docs/engines/` explain each.
const ENGINES: [(&str, &[&str]); 6] = [
    ("sqlite", &["processes of another machine", "network file systems"]),
    ("postgres", &["a failover to an asynchronous replica"]),
    ("redis", &["a failover, which is asynchronous", "a restart without an append-only file"]),
    ("dynamodb", &["replicas of a global table in other regions"]),
    (
        "github",
        &["lists of comments that are out of date (unless ?arbiter=ref)", "GitHub's own availability"],
    ),
    ("http", &["what the engine of the server does not promise"]),
];

impl NotPromised {
    pub(crate) fn of(header: &Header) -> Self {
        let of_engine = ENGINES.iter().find(|(engine, _)| *engine == header.engine);
        let mut limits = of_engine.map(|(_, limits)| limits.to_vec()).unwrap_or_default();
        if !header.queues {
            limits.push("the order of waiters");
        }
        if !header.tasks {
            limits.push("tasks");
        }
        limits.push("a holder in a paused process or virtual machine, without a fence");
        Self { limits, see: SEE }
    }
}

impl fmt::Display for NotPromised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not promised: {} (see {})", self.limits.join("; "), self.see)
    }
}
