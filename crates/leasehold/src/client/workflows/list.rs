//! List of executions: of one workflow, or of all workflows in one order.

use std::collections::BTreeMap;

use super::admin::Workflows;
use super::execution::Execution;
use crate::error::Result;
use crate::model::{ExecutionId, Task, TaskId, TaskState, WorkerId, WorkflowName};
use crate::store::lock_store::page_size;
use crate::store::{Cursor, ListTasks, Page};

/// Query for executions.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ListExecutions {
    /// Only executions of this workflow; all workflows by default.
    pub workflow: Option<WorkflowName>,
    /// Only executions in this state.
    pub state: Option<TaskState>,
    /// Only executions that this worker runs, or ran last.
    pub worker: Option<WorkerId>,
    /// Cursor of an earlier page, after which this page starts.
    pub after: Option<Cursor>,
    /// Maximum number of executions; 0 means 100.
    pub limit: u32,
}

setters!(ListExecutions {
    /// Lists only executions of this workflow.
    workflow: Option<WorkflowName>,
    /// Lists only executions in this state.
    state: Option<TaskState>,
    /// Lists only executions that this worker runs, or ran last.
    worker: Option<WorkerId>,
    /// Starts the page after this position of an earlier page.
    after: Option<Cursor>,
    /// Limits the number of executions of the page; 0 means 100.
    limit: u32,
});

/// Maximum number of workflows whose executions are read one workflow after the other and merged.
const MAX_MERGED: usize = 50;

impl Workflows {
    /// Lists executions, the newest first, one page per call. A page may have fewer executions than
    /// requested although there are more.
    pub async fn executions(&self, query: &ListExecutions) -> Result<Page<Execution>> {
        let workflows = match &query.workflow {
            Some(workflow) => vec![workflow.clone()],
            None => self.list().await?.into_iter().map(|status| status.workflow).collect(),
        };
        let page = match workflows.as_slice() {
            [] => Page { items: Vec::new(), next: None },
            [workflow] => self.read(workflow, query, query.limit).await?,
            many => match self.merge(many, query).await? {
                Some(page) => page,
                None => self.scan(query).await?,
            },
        };
        Ok(Page { items: page.items.into_iter().map(Execution::of).collect(), next: page.next })
    }

    /// Returns one page of the executions of a workflow. They all have its lock, and some engines find
    /// tasks by lock faster than by queue.
    async fn read(&self, workflow: &WorkflowName, query: &ListExecutions, limit: u32) -> Result<Page<Task>> {
        let list = ListTasks {
            queue: Some(workflow.queue()),
            lock: Some(workflow.lock()),
            state: query.state,
            worker: query.worker,
            after: query.after.clone(),
            limit,
            ..ListTasks::default()
        };
        self.tasks()?.list(&list).await
    }

    /// Like [`read`](Self::read), with a cursor that is that of the page's last task, as `merge` needs it: an engine
    /// that has searched for long ends its page early, with the cursor of the task that it examined last. Returns
    /// `None` if no such page can be read although there may be more tasks.
    async fn read_part(
        &self,
        workflow: &WorkflowName,
        query: &ListExecutions,
        limit: u32,
    ) -> Result<Option<Page<Task>>> {
        let found = |page: &Page<Task>| u32::try_from(page.items.len()).unwrap_or(u32::MAX);
        let page = self.read(workflow, query, limit).await?;
        let size = found(&page);
        if page.next.is_none() || size >= limit {
            return Ok(Some(page));
        }
        if size == 0 {
            return Ok(None);
        }
        let page = self.read(workflow, query, size).await?;
        Ok((page.next.is_none() || found(&page) >= size).then_some(page))
    }

    /// Returns one page of the executions of several workflows; `None` if they are too many, or if the
    /// engine searches for long. Other tasks of the store are not read: there may be a million of
    /// them. Few more executions are read than the page has, because each of them may be large.
    async fn merge(&self, workflows: &[WorkflowName], query: &ListExecutions) -> Result<Option<Page<Task>>> {
        let limit = page_size(query.limit) as usize;
        if workflows.len() > MAX_MERGED {
            return Ok(None);
        }
        let part = u32::try_from(limit / workflows.len()).unwrap_or(1).max(1);
        let mut pages = Vec::with_capacity(workflows.len());
        for workflow in workflows {
            let Some(page) = self.read_part(workflow, query, part).await? else { return Ok(None) };
            pages.push(page);
        }
        let merged = loop {
            let Some(merged) = Merged::of(&pages) else { return Ok(None) };
            let Some(number) = merged.end.filter(|_| merged.order.len() < limit) else { break merged };
            let page = &mut pages[number];
            let size = page.items.len().min(limit - merged.order.len());
            let rest = ListExecutions { after: page.next.clone(), ..query.clone() };
            let size = u32::try_from(size).unwrap_or(part);
            let Some(more) = self.read_part(&workflows[number], &rest, size).await? else {
                break merged; // The engine has searched for long; the next page continues there.
            };
            page.next = more.next;
            page.items.extend(more.items);
        };
        if merged.order.len() <= limit {
            let next = merged.end.and_then(|number| pages[number].next.clone());
            return Ok(Some(Page { items: merged.take(pages, limit), next }));
        }
        // Only the engine can make the cursor of a task within a page, and only if there are more behind it.
        let Some((size, of_last, last)) = merged.cut(&pages, limit) else { return Ok(None) };
        let of_last = u32::try_from(of_last).unwrap_or(part);
        let cut = self.read(&workflows[last], query, of_last).await?;
        // An engine that has searched for long may have found fewer.
        let is_there = cut.items.last().map(|task| task.id) == Some(merged.order[size - 1].0);
        Ok((is_there && cut.next.is_some()).then(|| Page { items: merged.take(pages, size), next: cut.next }))
    }

    /// Finds executions among all tasks.
    async fn scan(&self, query: &ListExecutions) -> Result<Page<Task>> {
        let (state, worker, after) = (query.state, query.worker, query.after.clone());
        let mut list = ListTasks { state, worker, after, limit: query.limit, ..ListTasks::default() };
        loop {
            let mut page = self.tasks()?.list(&list).await?;
            page.items.retain(|task| ExecutionId::of_task(task).is_some());
            if page.next.is_none() || !page.items.is_empty() {
                return Ok(page);
            }
            list.after = page.next;
        }
    }
}

/// Newest tasks of several pages, down to the first end of a page after which there are more.
struct Merged {
    /// Tasks with the numbers of their pages, the newest first.
    order: Vec<(TaskId, usize)>,
    /// Number of the page at whose end the list ends; `None` if there are no more tasks.
    end: Option<usize>,
}

impl Merged {
    /// Merges pages; `None` if one of them is empty although there are more tasks.
    fn of(pages: &[Page<Task>]) -> Option<Self> {
        let ends = pages.iter().enumerate().filter(|(_, page)| page.next.is_some());
        let ends = ends.map(|(number, page)| Some((page.items.last()?.id, number)));
        let end = ends.collect::<Option<Vec<(TaskId, usize)>>>()?.into_iter().max();
        let numbered = pages.iter().enumerate();
        let ids = numbered.flat_map(|(number, page)| page.items.iter().map(move |task| (task.id, number)));
        let mut order: Vec<_> = ids.collect();
        order.retain(|(id, _)| end.is_none_or(|(end, _)| *id >= end));
        order.sort_unstable_by(|one, other| other.cmp(one));
        Some(Self { order, end: end.map(|(_, number)| number) })
    }

    /// Returns the largest number of tasks up to `limit` after the last of which its page has more, the number
    /// of tasks of this page among them, and the number of the page.
    fn cut(&self, pages: &[Page<Task>], limit: usize) -> Option<(usize, usize, usize)> {
        (1..=limit.min(self.order.len())).rev().find_map(|size| {
            let first = &self.order[..size];
            let (_, last) = *first.last()?;
            let of_last = first.iter().filter(|(_, number)| *number == last).count();
            (pages[last].items.len() > of_last).then_some((size, of_last, last))
        })
    }

    /// Returns the first tasks, at most this number.
    fn take(&self, pages: Vec<Page<Task>>, size: usize) -> Vec<Task> {
        let all = pages.into_iter().flat_map(|page| page.items);
        let mut by_id: BTreeMap<TaskId, Task> = all.map(|task| (task.id, task)).collect();
        self.order.iter().take(size).filter_map(|(id, _)| by_id.remove(id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::model::{NewTask, Payload, QueueName, Timestamp};

    /// Returns a page of tasks with these ids.
    fn page(ids: &[u128], has_more: bool) -> Page<Task> {
        let task = |id: &u128| {
            let queue = QueueName::new("workflow/a").unwrap();
            let new = NewTask::new(TaskId::from_uuid(Uuid::from_u128(*id)), queue, Payload::default());
            Task::new(&new, Timestamp::from_micros(1))
        };
        Page { items: ids.iter().map(task).collect(), next: has_more.then(|| Cursor("more".into())) }
    }

    fn ids(tasks: &[Task]) -> Vec<u128> {
        tasks.iter().map(|task| task.id.as_uuid().as_u128()).collect()
    }

    #[test]
    fn pages_are_merged_down_to_the_first_end_of_one_with_more() {
        let pages = vec![page(&[9, 5, 1], false), page(&[8, 4], true), page(&[7, 3], true)];
        let merged = Merged::of(&pages).unwrap();
        assert_eq!(merged.end, Some(1));
        assert_eq!(ids(&merged.take(pages, 10)), [9, 8, 7, 5, 4]);
        assert!(Merged::of(&[page(&[1], false), page(&[], true)]).is_none());
    }

    /// Only a page with more tasks behind the cut has a cursor there.
    #[test]
    fn a_list_is_cut_where_the_page_of_its_last_task_has_more() {
        let pages = vec![page(&[9, 8, 6], false), page(&[7], false), page(&[5], false)];
        let merged = Merged::of(&pages).unwrap();
        assert_eq!(merged.end, None);
        assert_eq!(merged.cut(&pages, 4), Some((2, 2, 0)));
        assert_eq!(merged.cut(&pages, 1), Some((1, 1, 0)));
        let single = [page(&[9], false), page(&[8], false)];
        assert_eq!(Merged::of(&single).unwrap().cut(&single, 1), None);
    }
}
