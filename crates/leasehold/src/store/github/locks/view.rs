//! View of all comments of an issue at one point in time: conflicting claims, and the lock's record.

use super::claim::{Claim, CommentContent, EndKind, EndedLease, ParsedComment, StopRequestComment};
use crate::model::{
    HeldBy, Holder, Lease, LeaseId, LeaseRef, LockName, LockRecord, Mode, NotHeld, StopRequest, Timestamp,
    Token, Ttl,
};
use crate::store::github::api::{Comment, PAGE, REQUESTS_PER_RENEWAL};
use crate::store::github::options::CANDIDATE_TTL;
use crate::store::github::tasks::Record;

/// Margin after its end for which a claim still keeps other clients out: one second because
/// GitHub's times are whole seconds, the rest for clocks of the service that differ.
pub(crate) const GRACE: Ttl = Ttl::from_secs(5);

/// Combined content of an issue's comments.
#[derive(Debug, Clone)]
pub(crate) struct View {
    /// Time of the read, by the service's clock.
    pub(crate) now: Timestamp,
    /// Number of all comments, including those that leasehold did not write.
    pub(crate) count: usize,
    pub(super) posts: Vec<Post>,
}

/// Comment that leasehold wrote.
#[derive(Debug, Clone)]
pub(super) struct Post {
    id: u64,
    author: String,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
    /// Content of the comment; `None` if it cannot be parsed.
    pub(super) content: Option<CommentContent>,
}

/// Newest record of a task, and the claim that contains it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskRecord<'a> {
    pub(crate) id: u64,
    /// Newest token in the comment.
    pub(super) token: Token,
    pub(crate) record: &'a Record,
    /// Claim under which the task runs, if that claim is held.
    pub(crate) held: Option<&'a Claim>,
    /// Last edit of the comment, which is the last heartbeat of a held claim.
    pub(crate) edited_at: Timestamp,
}

impl TaskRecord<'_> {
    /// Returns the end of the lease under which the task runs, if its claim is held.
    pub(crate) fn expires_at(&self) -> Option<Timestamp> {
        self.held.map(|claim| self.edited_at.plus(claim.ttl))
    }
}

/// Claim that may keep other clients out.
#[derive(Debug, Clone)]
pub(crate) struct ClaimState {
    pub(crate) id: u64,
    pub(crate) author: String,
    pub(super) stage: ClaimStage,
    /// Content of the claim; `None` if it cannot be parsed.
    pub(crate) claim: Option<Claim>,
    pub(crate) last_heartbeat: Timestamp,
    /// Time from which the claim does not count for its holder.
    pub(crate) expires_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimStage {
    Candidate,
    Held,
    /// Released, but retained for its `at_least` time.
    Retained,
    /// Changed so that it cannot be parsed.
    Unreadable,
}

impl ClaimState {
    /// Whether the claim keeps other clients out. A held claim that had no heartbeat for
    /// `steal_after` does not. [`GRACE`] is added to both times.
    pub(super) fn conflicts(&self, now: Timestamp, steal_after: Option<Ttl>) -> bool {
        let stale =
            |after: Ttl| self.stage == ClaimStage::Held && self.last_heartbeat.plus(after).plus(GRACE) <= now;
        now < self.expires_at.plus(GRACE) && !steal_after.is_some_and(stale)
    }

    pub(super) fn belongs_to(&self, id: &LeaseId) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.lease_id == *id)
    }

    pub(super) fn held_by(&self) -> HeldBy {
        let claim = self.claim.as_ref();
        let unreadable =
            || Holder::new(format!("comment {}, which cannot be read", self.id)).expect("the text is short");
        HeldBy {
            holder: claim.map_or_else(unreadable, |claim| claim.holder.clone()),
            lease: claim.map(|claim| LeaseRef::of(&claim.lease_id)),
            mode: Mode::Exclusive,
            token: claim.map(|claim| claim.token).unwrap_or_default(),
            since: claim.map_or(self.last_heartbeat, |claim| claim.acquired_at.max(Timestamp::default())),
            until: self.expires_at,
        }
    }
}

/// Maximum time by which a token may be ahead of GitHub's clock.
const MAX_TOKEN_LEAD: Ttl = Ttl::from_secs(24 * 3600);

impl View {
    /// Creates a view of the comments that `is_trusted` accepts.
    pub(crate) fn new(now: Timestamp, comments: Vec<Comment>, is_trusted: impl Fn(&Comment) -> bool) -> Self {
        let count = comments.len();
        let highest = now.plus(MAX_TOKEN_LEAD);
        let ours = comments.into_iter().filter(is_trusted);
        let ours = ours.filter_map(|comment| Post::parse(comment, highest));
        Self { now, count, posts: ours.collect() }
    }

    /// Creates the view of an issue without comments.
    pub(crate) const fn empty(now: Timestamp) -> Self {
        Self { now, count: 0, posts: Vec::new() }
    }

    /// Returns the same view at another time; valid only if no comment has changed until then.
    pub(crate) fn at(&self, now: Timestamp) -> Self {
        Self { now, ..self.clone() }
    }

    /// Returns the claims that may keep other clients out, by ascending id. A comment that cannot
    /// be parsed counts for `unreadable_ttl` after its last edit.
    pub(super) fn claim_states(&self, unreadable_ttl: Ttl) -> Vec<ClaimState> {
        let forced: Vec<Token> = self
            .ended_leases()
            .filter(|ended| ended.how == EndKind::Forced)
            .map(|ended| ended.token)
            .collect();
        let claim_state = |post: &Post| {
            let (stage, claim, expires_at) = match &post.content {
                None => (ClaimStage::Unreadable, None, post.updated_at.plus(unreadable_ttl)),
                Some(CommentContent::Candidate(claim)) => {
                    (ClaimStage::Candidate, Some(claim), post.updated_at.plus(claim.ttl.min(CANDIDATE_TTL)))
                }
                // The comment of a forced release ends the lease, deleted or not.
                Some(CommentContent::Held(claim)) if forced.contains(&claim.token) => return None,
                Some(CommentContent::Held(claim)) => {
                    (ClaimStage::Held, Some(claim), post.updated_at.plus(claim.ttl))
                }
                Some(CommentContent::Released(claim)) => (ClaimStage::Retained, Some(claim), claim.until?),
                Some(CommentContent::StopRequest(_) | CommentContent::Ended(_)) => return None,
            };
            let (claim, author) = (claim.cloned(), post.author.clone());
            Some(ClaimState {
                id: post.id,
                author,
                stage,
                claim,
                last_heartbeat: post.updated_at,
                expires_at,
            })
        };
        self.posts.iter().filter_map(claim_state).collect()
    }

    /// Returns the number of requests of a renewal that reads as many comments: a list of several pages is
    /// read twice.
    pub(super) fn renewal_requests(&self) -> u64 {
        match (self.count / PAGE) as u64 {
            0 => REQUESTS_PER_RENEWAL,
            full_pages => 2 * (full_pages + 1) + 1,
        }
    }

    /// Returns the newest token.
    pub(crate) fn token(&self) -> Token {
        self.posts
            .iter()
            .filter_map(|post| post.content.as_ref())
            .map(CommentContent::highest_token)
            .max()
            .unwrap_or_default()
    }

    /// Returns the logins that are assigned without a lease, according to the newest claim.
    pub(super) fn left_assigned(&self) -> &[String] {
        let claims = self.posts.iter().filter_map(|post| match &post.content {
            Some(CommentContent::Held(claim) | CommentContent::Released(claim)) => {
                Some((claim.token, post.id, claim))
            }
            _ => None,
        });
        let newest = claims.max_by_key(|(token, id, _)| (*token, *id));
        newest.map_or(&[], |(_, _, claim)| claim.left_assigned.as_slice())
    }

    /// Returns the newest record of the task on this issue, in the order of tokens.
    pub(crate) fn task(&self) -> Option<TaskRecord<'_>> {
        let order = |post: &'_ Post| {
            let content = post.content.as_ref()?;
            let record = content.task()?;
            Some((content.highest_token(), record.version, post.id))
        };
        let newest =
            self.posts.iter().filter_map(|post| Some((order(post)?, post))).max_by_key(|(key, _)| *key);
        let ((token, ..), post) = newest?;
        let content = post.content.as_ref()?;
        let held = match content {
            // A claim that holds the issue for another purpose does not hold the task.
            CommentContent::Held(claim) if Some(claim.token) == content.task().map(|record| record.token) => {
                Some(claim)
            }
            _ => None,
        };
        Some(TaskRecord { id: post.id, token, record: content.task()?, held, edited_at: post.updated_at })
    }

    /// Whether a live candidate exists, whose client may be about to delete an ended claim.
    pub(crate) fn is_contested(&self) -> bool {
        let is_live =
            |state: &ClaimState| state.stage == ClaimStage::Candidate && state.conflicts(self.now, None);
        self.claim_states(CANDIDATE_TTL).iter().any(is_live)
    }

    /// Returns the latest release request for the lease with this token.
    pub(crate) fn release_request(&self, token: Token) -> Option<StopRequest> {
        let request = |(post, stop_request): (&Post, &StopRequestComment)| StopRequest {
            by: stop_request.by.clone(),
            reason: stop_request.reason.clone(),
            at: post.created_at,
        };
        self.stop_requests().filter(|(_, stop_request)| stop_request.token == token).last().map(request)
    }

    /// Returns the leases that are held, and those that are retained after their release.
    fn leases(&self) -> impl Iterator<Item = Lease> {
        let states = self.claim_states(CANDIDATE_TTL).into_iter();
        states.filter_map(|state| match (state.stage, &state.claim) {
            (ClaimStage::Held | ClaimStage::Retained, Some(claim)) => {
                Some(claim.lease(state.last_heartbeat, self.release_request(claim.token)))
            }
            _ => None,
        })
    }

    /// Returns the lock as a record; `None` if no comment shows a current or an ended lease, or a
    /// release request.
    pub(crate) fn record(&self, name: &LockName) -> Option<LockRecord> {
        let changes = |post: &Post| match &post.content {
            Some(CommentContent::Held(claim)) => 1 + claim.renewals + claim.took.len() as u64,
            Some(CommentContent::Released(claim)) => 2 + claim.renewals + claim.took.len() as u64,
            Some(CommentContent::StopRequest(_) | CommentContent::Ended(_)) => 1,
            Some(CommentContent::Candidate(_)) | None => 0,
        };
        let version = self.posts.iter().map(changes).sum();
        let record = LockRecord { token: self.token(), version, ..LockRecord::new(name.clone()) };
        (version > 0).then(|| LockRecord { holders: self.leases().collect(), ..record })
    }

    /// Returns the outcome of a request whose lease id and token match no lease.
    pub(super) fn not_held(&self) -> NotHeld {
        let live = self.leases().filter(|lease| self.now < lease.expires_at);
        NotHeld { token: self.token(), holders: live.map(|lease| HeldBy::from(&lease)).collect() }
    }

    pub(super) fn is_author(&self, login: &str) -> bool {
        self.posts.iter().any(|post| post.author.eq_ignore_ascii_case(login))
    }

    /// Returns the leases that ended without a release.
    pub(super) fn ended_leases(&self) -> impl Iterator<Item = &EndedLease> {
        self.posts.iter().flat_map(|post| match &post.content {
            Some(
                CommentContent::Candidate(claim)
                | CommentContent::Held(claim)
                | CommentContent::Released(claim),
            ) => claim.took.as_slice(),
            Some(CommentContent::Ended(end_record)) => end_record.took.as_slice(),
            _ => &[],
        })
    }

    /// Returns the release requests, oldest first.
    pub(super) fn stop_requests(&self) -> impl Iterator<Item = (&Post, &StopRequestComment)> {
        self.posts.iter().filter_map(|post| match &post.content {
            Some(CommentContent::StopRequest(stop_request)) => Some((post, stop_request)),
            _ => None,
        })
    }

    /// Returns the comments that only record the past, oldest first, without the newest `keep` of
    /// them. Never returns the newest record of a task.
    pub(super) fn old_comments(&self, keep: usize) -> Vec<u64> {
        let is_old = |post: &&Post| match &post.content {
            Some(CommentContent::Released(claim)) => {
                claim.until.is_none_or(|until| until.plus(GRACE) <= self.now)
            }
            Some(CommentContent::StopRequest(_) | CommentContent::Ended(_)) => {
                post.updated_at.plus(CANDIDATE_TTL) <= self.now
            }
            _ => false,
        };
        let newest = self.task().map(|known| known.id);
        let old = self.posts.iter().filter(is_old).map(|post| post.id).filter(|id| Some(*id) != newest);
        let old: Vec<_> = old.collect();
        old[..old.len().saturating_sub(keep)].to_vec()
    }
}

impl Post {
    /// Parses a comment; `None` if it is not leasehold's. Tokens follow GitHub's clock. A token
    /// that is far ahead of that clock was not created by the protocol, and would use up all tokens
    /// that come after it: a comment with such a token counts as one that cannot be parsed.
    fn parse(comment: Comment, highest: Timestamp) -> Option<Self> {
        let content = match CommentContent::parse(comment.body.as_deref().unwrap_or_default()) {
            ParsedComment::Foreign => return None,
            ParsedComment::Unreadable => None,
            ParsedComment::Ours(content) if content.highest_token().get() > highest.as_micros() => None,
            ParsedComment::Ours(content) => Some(*content),
        };
        let author = comment.user.map(|user| user.login).unwrap_or_default();
        Some(Self {
            id: comment.id,
            author,
            created_at: comment.created_at,
            updated_at: comment.updated_at,
            content,
        })
    }
}
