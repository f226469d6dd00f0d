//! The answer of `doctor`: a line for each check.

use serde::Serialize;

use leasehold::store::Finding;

use crate::output::{Failure, Paint, lines, visible};

/// One line.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    name: &'static str,
    status: Verdict,
    detail: String,
    /// A stable name for what is wrong; `docs/errors.md` has a line on each.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
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
        Self { name, status: Verdict::Ok, detail: detail.into(), code: None, advice: Vec::new() }
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

/// What would break a promise is a warning: the store can be used, and whoever does should know.
impl From<Finding> for Check {
    fn from(finding: Finding) -> Self {
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
            Finding::concern("permissions", "others can read it", "STORE_OPEN_TO_OTHERS", "chmod 600 it")
                .into(),
            Check::failed("store", &failure),
        ]);
        insta::assert_snapshot!(report.text(Paint::PLAIN), @"
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
