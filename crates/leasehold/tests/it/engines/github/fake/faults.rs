//! Faults that tests switch on.

use std::collections::VecDeque;
use std::time::Duration;

/// Fate of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engines::github) enum Fate {
    /// The request succeeds.
    Pass,
    /// The request never arrives.
    LoseRequest,
    /// The request takes effect, but the response is lost.
    LoseAnswer,
    /// The response is lost; the request takes effect later, when
    /// [`Fake::catch_up`](super::Fake::catch_up) is called.
    Late,
    /// The request is refused with this status and these headers.
    Refuse(u16, Vec<(&'static str, String)>),
    /// A proxy in front of GitHub answers with this status, without a date.
    Proxy(u16),
    /// The request succeeds after this time.
    Delay(Duration),
}

/// Order of the ids of comments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines::github) enum Ids {
    Rising,
    /// A later comment has a lower id, as may happen if two are created at once.
    Falling,
}

/// Tips that readers of refs get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines::github) enum StaleRefs {
    /// The newest tip.
    Never,
    /// The next reads, as many as the first number, get the tip from as many moves ago as the
    /// second number; none if there was none yet.
    Ago(u32, usize),
    /// With this probability in percent, any tip that ever was, or none.
    Chance(u8),
}

/// Faults, and when they happen.
#[derive(Debug)]
pub(super) struct Faults {
    pub(super) ids: Ids,
    /// Number of lists of comments that are answered with stored comments.
    pub(super) stale_lists: u32,
    pub(super) stale_refs: StaleRefs,
    /// Fates of the next requests with this method and end of the path.
    pub(super) planned: VecDeque<(String, Fate)>,
    /// Client that crashes: the fate of its request with this number from now; all later ones are
    /// lost.
    pub(super) crash: Option<Crash>,
    /// Number of requests that are left in this hour.
    pub(super) remaining: u64,
    /// Number of lists that were answered with 304.
    pub(super) unchanged: u32,
}

/// Client that dies.
#[derive(Debug)]
pub(super) struct Crash {
    pub(super) login: String,
    pub(super) after: u32,
    pub(super) fate: Fate,
}

impl Default for Faults {
    fn default() -> Self {
        let (ids, stale_refs) = (Ids::Rising, StaleRefs::Never);
        let (planned, crash, remaining) = (VecDeque::new(), None, 4321);
        Self { ids, stale_lists: 0, stale_refs, planned, crash, remaining, unchanged: 0 }
    }
}

impl Faults {
    /// Returns the fate of a request like `POST /repos/o/r/issues/1/comments`.
    pub(super) fn fate(&mut self, login: &str, request: &str) -> Fate {
        if let Some(crash) = &mut self.crash
            && crash.login == login
        {
            if crash.after == 0 {
                return std::mem::replace(&mut crash.fate, Fate::LoseRequest);
            }
            crash.after -= 1;
        }
        let matches = |(pattern, _): &(String, Fate)| matches_pattern(request, pattern);
        match self.planned.iter().position(matches) {
            Some(position) => self.planned.remove(position).expect("it was found").1,
            None => Fate::Pass,
        }
    }
}

/// Whether a request matches a pattern like `POST /comments`: its method, and the end of its path;
/// with a `*` at the end of the pattern, a part of its path.
pub(super) fn matches_pattern(request: &str, pattern: &str) -> bool {
    let (method, end) = pattern.split_once(' ').expect("METHOD END");
    let fits = |path: &str| end.strip_suffix('*').map_or(path.ends_with(end), |middle| path.contains(middle));
    request.split_once(' ').is_some_and(|(asked, path)| asked == method && fits(path))
}
