//! Issues for new tasks. Two clients that add the same task at once must not end up with two. So a
//! client creates an issue in the same way as it acquires a lock: the new issue states that it is
//! only a candidate (a *flag*), its creator checks whether there is another one, and only then the
//! issue becomes a task.

use serde_json::json;

use super::desk::{Desk, cannot};
use super::labels::MADE;
use super::made::{Made, Stage};
use crate::Result;
use crate::error::{Error, StoreErrorKind};
use crate::model::{Enqueued, NewTask, Reuse, TaskId, TaskState, Timestamp};
use crate::store::BootInstant;
use crate::store::github::answers::Issue;
use crate::store::github::issues::pause;
use crate::store::github::view::{GRACE, RAISED};

/// Maximum number of tasks that are added at once: all candidates have to become tasks before they
/// expire.
const BATCH: usize = 10;
/// Maximum number of reads while other candidates give way.
const LOOKS: u32 = 8;

/// All issues that were created for tasks, at one point in time.
struct Stock {
    now: Timestamp,
    made: Vec<(Issue, Made)>,
}

/// Task that is being added.
struct TaskDraft<'a> {
    new: &'a NewTask,
    made: Made,
    /// Number of the task's issue; 0 until there is one.
    number: u64,
    deadline: BootInstant,
    /// Issue whose key the task takes over.
    takes_key_of: Option<u64>,
}

/// Decision about a draft.
enum Fate {
    /// The draft can become a task.
    Settle,
    /// Other candidates exist, or the list is stale: read again.
    Wait,
    /// Another client was first.
    GiveWay,
}

impl Desk {
    /// Adds tasks. Each takes a second or two, because GitHub does not accept issues faster.
    pub(super) async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        for new in new {
            if new.lock.is_some() || new.room.is_some() {
                return Err(cannot(
                    "a task with a lock, or with room behind one",
                    "let its worker take the lock: leasehold run LOCK -- CMD, or the library's lock()",
                ));
            }
            self.uses(&new.queue)?;
            Made::new(new)?;
        }
        let _turn = self.making.lock().await;
        let mut enqueued = Vec::with_capacity(new.len());
        for batch in new.chunks(BATCH) {
            enqueued.extend(self.add_batch(batch).await?);
        }
        Ok(enqueued)
    }

    async fn add_batch(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        for look in 0..LOOKS {
            if let Some(enqueued) = self.try_to_add(new).await? {
                return Ok(enqueued);
            }
            pause(&self.protocol.api, look).await;
        }
        let message = "a task with the same id or key is being added by somebody else";
        Err(Error::store(StoreErrorKind::Unavailable, message, "try again in a minute"))
    }

    /// Tries to add tasks. Returns `None` if another client was first with one of them: then the
    /// caller has to read again.
    async fn try_to_add(&self, new: &[NewTask]) -> Result<Option<Vec<Enqueued>>> {
        let stock = self.stock().await?;
        let (mut enqueued, mut drafts) = (Vec::new(), Vec::<TaskDraft<'_>>::new());
        for new in new {
            let (answer, takes_key_of) = self.answer(new, &stock, &drafts).await?;
            enqueued.push(answer);
            if answer == Enqueued::Added(new.id)
                && !stock.has(new.id)
                && !drafts.iter().any(|d| d.new.id == new.id)
            {
                let made = Made::new(new)?;
                drafts.push(TaskDraft { new, made, number: 0, deadline: BootInstant::now(), takes_key_of });
            }
        }
        for draft in &mut drafts {
            self.raise(draft).await?;
        }
        let settled = self.look_and_settle(&drafts).await;
        if !matches!(settled, Ok(true)) {
            self.withdraw(&drafts).await;
        }
        Ok(settled?.then_some(enqueued))
    }

    /// Returns the result for a new task by the rules in leasehold-model, and the issue whose key
    /// the task takes over.
    async fn answer(
        &self,
        new: &NewTask,
        stock: &Stock,
        drafts: &[TaskDraft<'_>],
    ) -> Result<(Enqueued, Option<u64>)> {
        let added = (Enqueued::Added(new.id), None);
        if stock.has(new.id) || drafts.iter().any(|draft| draft.new.id == new.id) {
            return Ok(added);
        }
        if let Some(draft) = drafts.iter().find(|draft| draft.made.has_key_of(new)) {
            // The draft is pending, so its key is not free, regardless of `reuse`.
            let answer = new.keyed_answer(draft.new.id, TaskState::Pending, draft.made.fingerprint);
            return Ok((answer.unwrap_or(added.0), None));
        }
        let Some((issue, made)) = stock.tasks().find(|(_, made)| made.has_key_of(new)) else {
            return Ok(added);
        };
        let state = match new.reuse {
            Reuse::Never => TaskState::Pending,
            _ => self.look(issue.number).await?.map_or(TaskState::Pending, |(_, _, sight)| sight.task.state),
        };
        Ok(match new.keyed_answer(made.id, state, made.fingerprint) {
            Some(answer) => (answer, None),
            None => (added.0, Some(issue.number)),
        })
    }

    async fn raise(&self, draft: &mut TaskDraft<'_>) -> Result<()> {
        draft.deadline = BootInstant::now().plus(RAISED.as_duration());
        let (api, queue) = (&self.protocol.api, draft.new.queue.as_str());
        let issue = api.create_issue(&draft.made.title(), &draft.made.text(), &[queue, MADE]).await?.what;
        draft.number = issue.number;
        if let Some(user) = &issue.user {
            self.protocol.learn_me(&user.login);
        }
        if !issue.has_label(queue) || !issue.has_label(MADE) {
            self.withdraw(std::slice::from_ref(draft)).await;
            let message = format!("GitHub has not let this token label an issue of {}", api.repository());
            return Err(Error::store(
                StoreErrorKind::NotPermitted,
                message,
                "tasks can only be added with push access, or triage",
            ));
        }
        Ok(())
    }

    /// Reads the other candidates, and turns the drafts into tasks. Returns whether all of them are
    /// tasks now.
    async fn look_and_settle(&self, drafts: &[TaskDraft<'_>]) -> Result<bool> {
        if drafts.is_empty() {
            return Ok(true);
        }
        for look in 0..LOOKS {
            let stock = self.stock().await?;
            let fates: Vec<Fate> = drafts.iter().map(|draft| stock.fate(draft)).collect();
            if fates.iter().any(|fate| matches!(fate, Fate::GiveWay)) {
                return Ok(false);
            }
            if fates.iter().all(|fate| matches!(fate, Fate::Settle)) {
                for draft in drafts {
                    if !self.settle_draft(draft, &stock).await? {
                        return Ok(false);
                    }
                }
                return Ok(true);
            }
            pause(&self.protocol.api, look).await;
        }
        Ok(false)
    }

    async fn settle_draft(&self, draft: &TaskDraft<'_>, stock: &Stock) -> Result<bool> {
        let api = &self.protocol.api;
        if let Some((issue, made)) =
            stock.made.iter().find(|(issue, _)| Some(issue.number) == draft.takes_key_of)
        {
            api.edit_issue(issue.number, json!({ "body": made.without_key().text() })).await?;
        }
        api.edit_issue(draft.number, json!({ "body": draft.made.settled().text() })).await?;
        self.learn(draft.new.id, draft.number);
        Ok(BootInstant::now() < draft.deadline)
    }

    /// Closes candidates that did not become tasks.
    async fn withdraw(&self, drafts: &[TaskDraft<'_>]) {
        for draft in
            drafts.iter().filter(|draft| draft.number > 0 && self.known(draft.new.id) != Some(draft.number))
        {
            let change = json!({ "state": "closed", "state_reason": "not_planned" });
            if let Err(error) = self.protocol.api.edit_issue(draft.number, change).await {
                tracing::warn!(issue = draft.number, %error, "an issue that is not needed could not be closed");
            }
        }
    }

    /// Returns all issues that were created for tasks, including candidates.
    async fn stock(&self) -> Result<Stock> {
        let listed = self.protocol.api.queued(MADE, "all").await?;
        let made = listed.what.into_iter().filter_map(|issue| self.says(&issue).map(|made| (issue, made)));
        let stock = Stock { now: listed.now, made: made.collect() };
        for (issue, made) in stock.tasks() {
            self.learn(made.id, issue.number);
        }
        Ok(stock)
    }
}

impl Stock {
    fn tasks(&self) -> impl Iterator<Item = &(Issue, Made)> {
        self.made.iter().filter(|(_, made)| made.state == Stage::Settled)
    }

    fn has(&self, id: TaskId) -> bool {
        self.tasks().any(|(_, made)| made.id == id)
    }

    /// Decides about a draft, whose candidate is posted, from the other tasks and candidates.
    fn fate(&self, draft: &TaskDraft<'_>) -> Fate {
        let is_rival = |made: &Made| made.id == draft.new.id || made.has_key_of(draft.new);
        let rivals = self.made.iter().filter(|(issue, made)| issue.number != draft.number && is_rival(made));
        let (tasks, flags): (Vec<_>, Vec<_>) = rivals.partition(|(_, made)| made.state == Stage::Settled);
        let is_up =
            |issue: &Issue| !issue.is_closed() && self.now < issue.created_at.plus(RAISED).plus(GRACE);
        let flags: Vec<u64> =
            flags.iter().filter(|(issue, _)| is_up(issue)).map(|(issue, _)| issue.number).collect();
        if tasks.iter().any(|(issue, _)| Some(issue.number) != draft.takes_key_of) {
            return Fate::GiveWay;
        }
        // A list without this client's own candidate is stale.
        let is_there = self.made.iter().any(|(issue, _)| issue.number == draft.number);
        match (is_there, flags.iter().min()) {
            (true, None) => Fate::Settle,
            (true, Some(first)) if *first < draft.number => Fate::GiveWay,
            _ => Fate::Wait,
        }
    }
}

impl Made {
    /// Whether this issue has the key that the new task wants.
    fn has_key_of(&self, new: &NewTask) -> bool {
        self.queue == new.queue && self.key.is_some() && self.key == new.key
    }
}
