//! What goes wrong.

use std::collections::VecDeque;

/// What becomes of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engines::github) enum Fate {
    /// All is well.
    Pass,
    /// It never arrives.
    LoseRequest,
    /// It takes effect, but the answer is lost.
    LoseAnswer,
    /// The answer is lost; it takes effect later, when [`Fake::catch_up`](super::Fake::catch_up) is called.
    Late,
    /// It is refused with this status, and these headers.
    Refuse(u16, Vec<(&'static str, String)>),
}

/// How comments are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines::github) enum Ids {
    Rising,
    /// What is made later has the lower id, as may be when two are made at once.
    Falling,
}

/// Which tips whoever reads refs gets to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines::github) enum OldRefs {
    /// The newest.
    Never,
    /// So many reads see the tip as it was so many moves ago; none if there was none yet.
    Ago(u32, usize),
    /// With a chance of so many in a hundred, any that ever was, or none.
    Chance(u8),
}

/// What goes wrong, and when.
#[derive(Debug)]
pub(super) struct Switches {
    pub(super) ids: Ids,
    /// So many lists of comments are answered as they were once.
    pub(super) stale_lists: u32,
    pub(super) old_refs: OldRefs,
    /// What happens to the next requests of this method and path ending.
    pub(super) planned: VecDeque<(String, Fate)>,
    /// Somebody's request with this number from now, and what happens to it; all after it are lost: they have crashed.
    pub(super) crash: Option<Crash>,
    /// So many requests are left of the hour.
    pub(super) left: u64,
    /// How many lists had not changed.
    pub(super) unchanged: u32,
    /// How many requests everybody has made since the last count.
    pub(super) asked: u32,
}

/// A client that dies.
#[derive(Debug)]
pub(super) struct Crash {
    pub(super) login: String,
    pub(super) after: u32,
    pub(super) fate: Fate,
}

impl Default for Switches {
    fn default() -> Self {
        let (ids, old_refs) = (Ids::Rising, OldRefs::Never);
        let (planned, crash, left) = (VecDeque::new(), None, 4321);
        Self { ids, stale_lists: 0, old_refs, planned, crash, left, unchanged: 0, asked: 0 }
    }
}

impl Switches {
    /// What becomes of a request like `POST /repos/o/r/issues/1/comments`.
    pub(super) fn fate(&mut self, login: &str, request: &str) -> Fate {
        self.asked += 1;
        if let Some(crash) = &mut self.crash
            && crash.login == login
        {
            if crash.after == 0 {
                return std::mem::replace(&mut crash.fate, Fate::LoseRequest);
            }
            crash.after -= 1;
        }
        let matches = |(what, _): &(String, Fate)| is_like(request, what);
        match self.planned.iter().position(matches) {
            Some(place) => self.planned.remove(place).expect("it was there").1,
            None => Fate::Pass,
        }
    }
}

/// Whether a request is like `POST /comments`: its method, and how its path ends; or, with a `*` at the end, what is in it.
pub(super) fn is_like(request: &str, what: &str) -> bool {
    let (method, end) = what.split_once(' ').expect("METHOD END");
    let fits = |path: &str| end.strip_suffix('*').map_or(path.ends_with(end), |middle| path.contains(middle));
    request.split_once(' ').is_some_and(|(asked, path)| asked == method && fits(path))
}
