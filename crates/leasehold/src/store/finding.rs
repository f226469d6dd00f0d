//! What an engine finds out about itself for `leasehold doctor`.

/// One thing about an engine that is worth a line: in order, or in the way of a promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at, in a word or two.
    pub name: &'static str,
    /// What was found.
    pub detail: String,
    /// What is wrong with it; nothing if it is in order.
    pub concern: Option<Concern>,
}

/// Something that would break a promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concern {
    /// A stable name for programs; `docs/errors.md` has a paragraph on each.
    pub code: &'static str,
    /// What to do about it.
    pub hint: String,
}

impl Finding {
    /// In order.
    pub fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, detail: detail.into(), concern: None }
    }

    /// In the way of a promise.
    pub fn concern(
        name: &'static str,
        detail: impl Into<String>,
        code: &'static str,
        hint: impl Into<String>,
    ) -> Self {
        Self { name, detail: detail.into(), concern: Some(Concern { code, hint: hint.into() }) }
    }
}
