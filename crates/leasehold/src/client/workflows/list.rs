//! List of executions: of one workflow, or of all workflows in one order.

use super::admin::Workflows;
use super::execution::Execution;
use crate::error::Result;
use crate::model::{ExecutionId, Task, TaskId, TaskState, WorkflowName};
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
            after: query.after.clone(),
            limit,
            ..ListTasks::default()
        };
        self.tasks()?.list(&list).await
    }

    /// Returns one page of the executions of several workflows; `None` if they are too many. Other tasks of
    /// the store are not read: there may be a million of them.
    async fn merge(&self, workflows: &[WorkflowName], query: &ListExecutions) -> Result<Option<Page<Task>>> {
        if workflows.len() > MAX_MERGED {
            return Ok(None);
        }
        let limit = page_size(query.limit) as usize;
        let mut pages = Vec::with_capacity(workflows.len());
        for workflow in workflows {
            pages.push(self.read(workflow, query, query.limit).await?);
        }
        let sizes = std::iter::successors(Some(limit), |size| (*size > 1).then_some(size / 2));
        for size in sizes {
            let Some(merged) = Merged::of(&pages, size).filter(|merged| merged.tasks.len() <= limit) else {
                continue;
            };
            let next = match merged.end {
                Some(number) if pages[number].items.len() > size => {
                    // Only the engine can make the cursor of a task within a page.
                    let size = u32::try_from(size).unwrap_or(query.limit);
                    self.read(&workflows[number], query, size).await?.next
                }
                Some(number) => pages.swap_remove(number).next,
                None => None,
            };
            return Ok(Some(Page { items: merged.tasks, next }));
        }
        Ok(None)
    }

    /// Finds executions among all tasks.
    async fn scan(&self, query: &ListExecutions) -> Result<Page<Task>> {
        let (state, after, limit) = (query.state, query.after.clone(), query.limit);
        let mut list = ListTasks { state, after, limit, ..ListTasks::default() };
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
    tasks: Vec<Task>,
    /// Number of the page at whose end the list ends; `None` if there are no more tasks.
    end: Option<usize>,
}

impl Merged {
    /// Merges the first tasks of each page, at most `size` of each.
    fn of(pages: &[Page<Task>], size: usize) -> Option<Self> {
        let first = |page: &Page<Task>| page.items.len().min(size);
        let has_more = |page: &Page<Task>| page.items.len() > size || page.next.is_some();
        let ends = pages.iter().enumerate().filter(|(_, page)| has_more(page));
        // A page may be empty although there are more.
        let ends = ends.map(|(number, page)| {
            Some((first(page).checked_sub(1).map(|last| page.items[last].id)?, number))
        });
        let end = ends.collect::<Option<Vec<(TaskId, usize)>>>()?.into_iter().max();
        let tasks = pages.iter().flat_map(|page| &page.items[..first(page)]);
        let mut tasks: Vec<Task> =
            tasks.filter(|task| end.is_none_or(|(end, _)| task.id >= end)).cloned().collect();
        tasks.sort_by_key(|task| std::cmp::Reverse(task.id));
        Some(Self { tasks, end: end.map(|(_, number)| number) })
    }
}
