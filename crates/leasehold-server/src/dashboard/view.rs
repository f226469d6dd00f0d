//! What a page shows: parsed from its address, and the key under which tabs share its data.

use std::fmt::{Display, Write};

use leasehold::client::EventView;
use leasehold::model::{ExecutionId, LockName, QueueName, TaskId, TaskState, WorkflowName};
use leasehold::store::LockState;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::svg::chart::Span;
use crate::problem::{ApiResult, Problem};

/// Characters of a path segment and of a query value that need no escape.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Page of the dashboard, with its filters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum View {
    Overview(Span),
    Locks(LocksView),
    Lock { name: LockName, before: Option<String> },
    Queues,
    Tasks(TasksView),
    Task(TaskId),
    Executions(ExecutionsView),
    Execution(ExecutionId),
    Schedules,
    Workers,
    Audit(AuditView),
    Health,
}

/// List of locks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct LocksView {
    /// Beginning of the names.
    pub(crate) prefix: String,
    /// Part of a holder's name.
    pub(crate) holder: String,
    /// State of the locks; `None` lists those that are held or waited for.
    pub(crate) state: Option<LockTab>,
    pub(crate) after: Option<String>,
}

/// Tab of the list of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LockTab {
    Held,
    Waited,
    Stale,
    Free,
    All,
}

/// List of tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct TasksView {
    pub(crate) queue: Option<QueueName>,
    pub(crate) state: Option<TaskStateKey>,
    pub(crate) lock: Option<LockName>,
    pub(crate) after: Option<String>,
}

/// List of executions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct ExecutionsView {
    pub(crate) workflow: Option<WorkflowName>,
    pub(crate) state: Option<TaskStateKey>,
    pub(crate) after: Option<String>,
}

/// List of the events of all locks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct AuditView {
    /// One of [`AuditView::KINDS`]: the kind of the events, or `actions` for those that an operator caused.
    pub(crate) kind: String,
    pub(crate) before: Option<String>,
}

/// State of a task, as a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TaskStateKey(&'static str);

impl TaskStateKey {
    pub(crate) fn of(state: TaskState) -> Self {
        Self(state.as_str())
    }

    pub(crate) fn get(self) -> TaskState {
        let known = TaskState::ALL.into_iter().find(|state| state.as_str() == self.0);
        known.unwrap_or(TaskState::Pending)
    }
}

impl LockTab {
    pub(crate) const ALL: [Self; 5] = [Self::Held, Self::Waited, Self::Stale, Self::Free, Self::All];

    /// Returns the word in the address, and the label.
    pub(crate) const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Held => ("held", "Held"),
            Self::Waited => ("waited", "Waited for"),
            Self::Stale => ("stale", "Stale"),
            Self::Free => ("free", "Free"),
            Self::All => ("all", "All"),
        }
    }

    pub(crate) const fn state(self) -> Option<LockState> {
        match self {
            Self::Held => Some(LockState::Held),
            Self::Waited => Some(LockState::Waited),
            Self::Stale => Some(LockState::Stale),
            Self::Free => Some(LockState::Free),
            Self::All => None,
        }
    }
}

impl View {
    /// Parses the path and the query of a page, below the prefix of the dashboard.
    pub(crate) fn parse(address: &str) -> ApiResult<Self> {
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        let segments: Vec<String> = path.split('/').skip(1).map(decoded).collect::<ApiResult<_>>()?;
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let query = Query::parse(query);
        Ok(match segments[..] {
            [""] => Self::Overview(query.span()?),
            ["locks"] => Self::Locks(LocksView::parse(&query)?),
            ["locks", name] => Self::Lock { name: LockName::new(name)?, before: query.text("before") },
            ["queues"] => Self::Queues,
            ["tasks"] => Self::Tasks(TasksView {
                queue: query.text("queue").map(QueueName::new).transpose()?,
                state: query.state()?,
                lock: query.text("lock").map(LockName::new).transpose()?,
                after: query.text("after"),
            }),
            ["tasks", id] => Self::Task(id.parse()?),
            ["executions"] => Self::Executions(ExecutionsView {
                workflow: query.text("workflow").map(WorkflowName::new).transpose()?,
                state: query.state()?,
                after: query.text("after"),
            }),
            ["executions", id] => Self::Execution(id.parse()?),
            ["schedules"] => Self::Schedules,
            ["workers"] => Self::Workers,
            ["audit"] => Self::Audit(AuditView::parse(&query)?),
            ["health"] => Self::Health,
            _ => return Err(Problem::new("UNKNOWN_PATH", format!("there is no page {path}"))),
        })
    }

    /// Returns the path and the query of the page.
    pub(crate) fn address(&self) -> String {
        let mut to = Address::default();
        match self {
            Self::Overview(span) => {
                to.path("/");
                to.text("span", if *span == Span::default() { "" } else { span.word() });
            }
            Self::Locks(view) => {
                to.path("/locks");
                to.text("q", &view.filter());
                to.text("state", view.state.map_or("", |tab| tab.words().0));
                to.text("after", view.after.as_deref().unwrap_or(""));
            }
            Self::Lock { name, before } => {
                to.path(&lock_path(name));
                to.text("before", before.as_deref().unwrap_or(""));
            }
            Self::Queues => to.path("/queues"),
            Self::Tasks(view) => {
                to.path("/tasks");
                to.text("queue", view.queue.as_ref().map_or("", QueueName::as_str));
                to.text("state", view.state.map_or("", |state| state.0));
                to.text("lock", view.lock.as_ref().map_or("", LockName::as_str));
                to.text("after", view.after.as_deref().unwrap_or(""));
            }
            Self::Task(id) => to.path(&path("tasks", id)),
            Self::Executions(view) => {
                to.path("/executions");
                to.text("workflow", view.workflow.as_ref().map_or("", WorkflowName::as_str));
                to.text("state", view.state.map_or("", |state| state.0));
                to.text("after", view.after.as_deref().unwrap_or(""));
            }
            Self::Execution(id) => to.path(&path("executions", id)),
            Self::Schedules => to.path("/schedules"),
            Self::Workers => to.path("/workers"),
            Self::Audit(view) => {
                to.path("/audit");
                to.text("kind", &view.kind);
                to.text("before", view.before.as_deref().unwrap_or(""));
            }
            Self::Health => to.path("/health"),
        }
        to.0
    }

    /// Whether the page shows the newest items, so that it changes while it is open.
    pub(crate) fn is_live(&self) -> bool {
        !matches!(self, Self::Lock { before: Some(_), .. } | Self::Audit(AuditView { before: Some(_), .. }))
    }
}

impl AuditView {
    /// Kinds that can be selected, with their labels.
    pub(crate) const KINDS: [(&'static str, &'static str); 7] = [
        ("", "All"),
        ("actions", "Interventions"),
        ("acquired", "Acquired"),
        ("released", "Released"),
        ("expired", "Expired"),
        ("stolen", "Stolen"),
        ("forced", "Forced"),
    ];

    fn parse(query: &Query) -> ApiResult<Self> {
        let kind = query.text("kind").unwrap_or_default();
        let words = Self::KINDS.map(|(word, _)| word);
        if words.contains(&kind.as_str()) {
            return Ok(Self { kind, before: query.text("before") });
        }
        let (kind, words) = (kind.escape_debug(), words[1..].join(", "));
        Err(Problem::invalid(format!("unknown kind '{kind}': must be one of {words}")))
    }

    /// Whether the list contains this event.
    pub(crate) fn matches(&self, event: &EventView) -> bool {
        match self.kind.as_str() {
            "" => true,
            "actions" => event.by.is_some(),
            kind => event.kind.to_string() == kind,
        }
    }
}

impl LocksView {
    /// Parses the filter: words such as `name:deploy/ holder:ci state:held`; a plain word is a prefix.
    fn parse(query: &Query) -> ApiResult<Self> {
        let mut view = Self { after: query.text("after"), ..Self::default() };
        let filter = query.text("q").unwrap_or_default();
        for word in filter.split_whitespace() {
            match word.split_once(':') {
                Some(("name", prefix)) => prefix.clone_into(&mut view.prefix),
                Some(("holder", holder)) => holder.clone_into(&mut view.holder),
                Some(("state", state)) => view.state = Some(lock_tab(state)?),
                Some(("stale", "" | "true")) => view.state = Some(LockTab::Stale),
                _ => word.clone_into(&mut view.prefix),
            }
        }
        if let Some(state) = query.text("state") {
            view.state = Some(lock_tab(&state)?);
        }
        Ok(view)
    }

    /// Returns the filter as its field shows it.
    pub(crate) fn filter(&self) -> String {
        let name =
            if self.prefix.contains(':') { format!("name:{}", self.prefix) } else { self.prefix.clone() };
        let holder = if self.holder.is_empty() { String::new() } else { format!("holder:{}", self.holder) };
        [name, holder].into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

fn lock_tab(word: &str) -> ApiResult<LockTab> {
    let known = LockTab::ALL.into_iter().find(|tab| tab.words().0 == word);
    known.ok_or_else(|| {
        let words = LockTab::ALL.map(|tab| tab.words().0).join(", ");
        Problem::invalid(format!("unknown state '{}': must be one of {words}", word.escape_debug()))
    })
}

/// Returns the path of the page of a lock.
pub(crate) fn lock_path(name: &LockName) -> String {
    path("locks", name)
}

/// Returns a path with one name.
pub(crate) fn path(kind: &str, name: &impl Display) -> String {
    format!("/{kind}/{}", encoded(&name.to_string()))
}

/// Escapes a name for a path or a query.
pub(crate) fn encoded(text: &str) -> String {
    // A segment of dots would be taken for a relative path.
    if !text.is_empty() && text.chars().all(|c| c == '.') {
        return text.replace('.', "%2E");
    }
    utf8_percent_encode(text, ESCAPED).to_string()
}

fn decoded(segment: &str) -> ApiResult<String> {
    let text = percent_decode_str(segment).decode_utf8();
    text.map(Into::into).map_err(|_| Problem::invalid("the address is not valid UTF-8"))
}

struct Query(Vec<(String, String)>);

impl Query {
    fn parse(query: &str) -> Self {
        Self(form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }

    /// Returns a parameter that is not empty.
    fn text(&self, name: &str) -> Option<String> {
        let found = self.0.iter().find(|(known, value)| known == name && !value.is_empty());
        found.map(|(_, value)| value.clone())
    }

    fn span(&self) -> ApiResult<Span> {
        let Some(word) = self.text("span") else { return Ok(Span::default()) };
        Span::ALL.into_iter().find(|span| span.word() == word).ok_or_else(|| {
            let words = Span::ALL.map(Span::word).join(", ");
            Problem::invalid(format!("unknown span '{}': must be one of {words}", word.escape_debug()))
        })
    }

    fn state(&self) -> ApiResult<Option<TaskStateKey>> {
        Ok(self.text("state").map(|state| state.parse::<TaskState>()).transpose()?.map(TaskStateKey::of))
    }
}

#[derive(Default)]
struct Address(String);

impl Address {
    fn path(&mut self, path: &str) {
        self.0.push_str(path);
    }

    fn text(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            let sign = if self.0.contains('?') { '&' } else { '?' };
            let _ = write!(self.0, "{sign}{name}={}", encoded(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_survives_the_round_trip_through_its_address() {
        for address in [
            "/",
            "/?span=6h",
            "/locks",
            "/locks?q=deploy%2F%20holder%3Aci&state=held&after=x%26y",
            "/locks/a%2Fb%20%3Cb%3E%D7%A9",
            "/locks/%2E%2E?before=12",
            "/queues",
            "/tasks?queue=mail&state=running&lock=a&after=5",
            "/tasks/01890a5d-ac96-774b-bcce-b302099a8057",
            "/executions?workflow=build&state=failed",
            "/schedules",
            "/workers",
            "/audit?kind=forced",
            "/audit?kind=actions&before=12",
            "/health",
        ] {
            assert_eq!(View::parse(address).unwrap().address(), address);
        }
    }

    #[test]
    fn words_of_the_filter_select_locks() {
        let View::Locks(view) = View::parse("/locks?q=name%3Aa%3Ab+holder%3Aci+state%3Awaited").unwrap()
        else {
            panic!("another view");
        };
        assert_eq!((view.prefix.as_str(), view.holder.as_str()), ("a:b", "ci"));
        assert_eq!(view.state, Some(LockTab::Waited));
        assert_eq!(view.filter(), "name:a:b holder:ci");
    }

    #[test]
    fn an_unknown_address_is_rejected() {
        for address in [
            "/nowhere",
            "/?span=2h",
            "/locks/a/b",
            "/locks?state=odd",
            "/tasks/x",
            "/tasks?state=odd",
            "/locks/%FF",
            "/audit?kind=odd",
        ] {
            assert!(View::parse(address).is_err(), "{address}");
        }
    }
}
