//! The answer of `doctor`: a line for each check.

use serde::Serialize;

use crate::output::{Failure, Paint, visible};

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
        let mut text = String::new();
        for check in &self.checks {
            let sign = match check.status {
                Verdict::Ok => paint.good("✓"),
                Verdict::Warning => paint.warning("!"),
                Verdict::Failed => paint.bad("✗"),
            };
            text += &format!("{sign} {:width$}  {}\n", check.name, visible(&check.detail));
            for line in &check.advice {
                text += &format!("  {:width$}  {}\n", "", visible(line));
            }
        }
        text
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
        insta::assert_snapshot!(report.text(Paint::PLAIN), @"");
        assert!(!report.ok);
    }
}
