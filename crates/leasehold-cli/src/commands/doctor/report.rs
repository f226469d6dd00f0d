//! The answer of `doctor`: a line for each check.

use serde::Serialize;

use crate::output::{Failure, Paint, lines, visible};

/// One line.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    name: &'static str,
    status: Verdict,
    detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    advice: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warning,
    Failed,
}

/// All lines.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    ok: bool,
    checks: Vec<Check>,
}

impl Check {
    pub(super) fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, status: Verdict::Ok, detail: detail.into(), advice: Vec::new() }
    }

    pub(super) fn warning(name: &'static str, detail: impl Into<String>, hint: &str) -> Self {
        Self { status: Verdict::Warning, advice: vec![format!("hint: {hint}")], ..Self::ok(name, detail) }
    }

    pub(super) fn failed(name: &'static str, failure: &Failure) -> Self {
        Self {
            status: Verdict::Failed,
            advice: failure.advice().collect(),
            ..Self::ok(name, failure.message())
        }
    }
}

impl Report {
    pub(super) fn new(checks: Vec<Check>) -> Self {
        let ok = checks.iter().all(|check| check.status != Verdict::Failed);
        Self { ok, checks }
    }

    pub(super) fn text(&self, paint: Paint) -> String {
        let width = self.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
        lines(self.checks.iter().flat_map(|check| {
            let sign = match check.status {
                Verdict::Ok => paint.good("✓"),
                Verdict::Warning => paint.warning("!"),
                Verdict::Failed => paint.bad("✗"),
            };
            let first = format!("{sign} {:width$}  {}", check.name, visible(&check.detail));
            let advice = check.advice.iter().map(move |line| format!("  {:width$}  {}", "", visible(line)));
            std::iter::once(first).chain(advice)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_has_a_sign_and_its_advice() {
        let failure = Failure::config("it is no database").hint("name another file");
        let report = Report::new(vec![
            Check::ok("version", "1"),
            Check::warning("permissions", "others can read it", "chmod 600 it"),
            Check::failed("store", &failure),
        ]);
        insta::assert_snapshot!(report.text(Paint::PLAIN), @"
        ✓ version      1
        ! permissions  others can read it
                       hint: chmod 600 it
        ✗ store        it is no database
                       hint: name another file
        ");
        assert!(!report.ok);
    }
}
