//! Health checks of an engine, for `leasehold doctor`.

/// Result of one health check: in order, or an issue that breaks a guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthCheck {
    /// Short name of the check.
    pub name: &'static str,
    /// Result in detail.
    pub detail: String,
    /// Issue that was found; `None` if the check passed.
    pub issue: Option<HealthIssue>,
}

/// Issue that would break a guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthIssue {
    /// Stable code for programs; `docs/errors.md` has a paragraph on each.
    pub code: &'static str,
    /// How to fix the issue.
    pub hint: String,
}

impl HealthCheck {
    /// Returns a passed check.
    pub fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, detail: detail.into(), issue: None }
    }

    /// Returns a check with an issue that breaks a guarantee.
    pub fn issue(
        name: &'static str,
        detail: impl Into<String>,
        code: &'static str,
        hint: impl Into<String>,
    ) -> Self {
        Self { name, detail: detail.into(), issue: Some(HealthIssue { code, hint: hint.into() }) }
    }
}
