//! Report of `doctor`: one line for each check.

use serde::Serialize;

use leasehold::store::HealthCheck;

use crate::output::{Failure, Style, lines, visible};

/// Result of one check.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    name: &'static str,
    status: CheckStatus,
    detail: String,
    /// Stable name of the problem; `docs/errors.md` describes each.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// Advice on how to fix the problem.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    advice: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckStatus {
    Ok,
    Warning,
    Failed,
}

/// Results of all checks.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    ok: bool,
    checks: Vec<Check>,
}

impl Check {
    pub(super) fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Ok, detail: detail.into(), code: None, advice: Vec::new() }
    }

    pub(super) fn warning(name: &'static str, detail: impl Into<String>, hint: &str) -> Self {
        Self { status: CheckStatus::Warning, advice: vec![format!("hint: {hint}")], ..Self::ok(name, detail) }
    }

    pub(super) fn failed(name: &'static str, failure: &Failure) -> Self {
        Self {
            status: CheckStatus::Failed,
            advice: failure.advice().collect(),
            ..Self::ok(name, failure.message())
        }
    }
}

/// A health issue becomes a warning, not a failure: the store can be used, but its users should
/// know of the issue.
impl From<HealthCheck> for Check {
    fn from(finding: HealthCheck) -> Self {
        match finding.concern {
            None => Self::ok(finding.name, finding.detail),
            Some(concern) => Self {
                code: Some(concern.code),
                ..Self::warning(finding.name, finding.detail, &concern.hint)
            },
        }
    }
}

impl Report {
    pub(super) fn new(checks: Vec<Check>) -> Self {
        let ok = checks.iter().all(|check| check.status != CheckStatus::Failed);
        Self { ok, checks }
    }

    pub(super) fn text(&self, style: Style) -> String {
        let width = self.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
        lines(self.checks.iter().flat_map(|check| {
            let sign = match check.status {
                CheckStatus::Ok => style.good("✓"),
                CheckStatus::Warning => style.warning("!"),
                CheckStatus::Failed => style.bad("✗"),
            };
            let code = check.code.map(|code| format!(" [{code}]")).unwrap_or_default();
            let first = format!("{sign} {:width$}  {}{code}", check.name, visible(&check.detail));
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
            Check::warning("clock", "it is behind", "never mind"),
            HealthCheck::concern("permissions", "others can read it", "STORE_OPEN_TO_OTHERS", "chmod 600 it")
                .into(),
            Check::failed("store", &failure),
        ]);
        insta::assert_snapshot!(report.text(Style::PLAIN), @"
        ✓ version      1
        ! clock        it is behind
                       hint: never mind
        ! permissions  others can read it [STORE_OPEN_TO_OTHERS]
                       hint: chmod 600 it
        ✗ store        it is no database
                       hint: name another file
        ");
        assert!(!report.ok);
    }
}
