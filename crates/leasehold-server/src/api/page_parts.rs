//! Pages that are limited by their bytes, too: a task may have a payload and a result of 1 MiB each, and an
//! engine limits a page only by the number of its items.

use leasehold::model::{Task, TaskEvent, TaskState};
use leasehold::store::{ListTasks, Page};
use leasehold::{Execution, ListExecutions, Result, Tasks, Workflows};

/// Bytes at which a page is full, whatever its limit.
const FULL: usize = 8 << 20;
/// Maximum number of items in the first part of a page, which may have 64 MiB: the bytes of a part are known
/// only when it has been read.
const FIRST_PART: u32 = 32;
/// Factor by which each further part may be larger, so that a page of small items needs few calls.
const GROWTH: u32 = 4;

/// Parts in which a page is read, until it has enough items or bytes.
struct PageParts {
    left: u32,
    part: u32,
    bytes: usize,
}

impl PageParts {
    const fn new(limit: u32) -> Self {
        Self { left: limit, part: FIRST_PART, bytes: 0 }
    }

    /// Returns the parts of a page of tasks. A task without a payload and a result has its events, which are at
    /// most 400 KiB.
    fn of(query: &ListTasks) -> Self {
        let may_have_results = query.state.is_none_or(|state| state == TaskState::Succeeded);
        let part = match (query.brief, may_have_results) {
            (false, _) => FIRST_PART,
            (true, true) => 2 * FIRST_PART,
            (true, false) => 4 * FIRST_PART,
        };
        Self { part, ..Self::new(query.limit) }
    }

    /// Returns the limit of the next part; `None` if the page is full.
    fn next_limit(&mut self) -> Option<u32> {
        if self.left == 0 || self.bytes >= FULL {
            return None;
        }
        let limit = self.part.min(self.left);
        self.part = self.part.saturating_mul(GROWTH);
        Some(limit)
    }

    /// Counts the items of a part by their sizes.
    fn add(&mut self, sizes: impl Iterator<Item = usize>) {
        for bytes in sizes {
            self.left = self.left.saturating_sub(1);
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }
}

/// Lists tasks. The page ends early if its tasks are large.
pub(crate) async fn list_tasks(tasks: &Tasks, mut query: ListTasks) -> Result<Page<Task>> {
    let (mut parts, mut items) = (PageParts::of(&query), Vec::new());
    while let Some(limit) = parts.next_limit() {
        query.limit = limit;
        let page = tasks.list(&query).await?;
        // An engine that has searched for long ends its page early.
        let is_last = page.items.len() < limit as usize;
        parts.add(page.items.iter().map(task_bytes));
        items.extend(page.items);
        query.after = page.next;
        if is_last || query.after.is_none() {
            break;
        }
    }
    Ok(Page::new(items, query.after))
}

/// Number of parts of a page of executions that the engine may end early, and the number while none was found.
const MAX_SHORT_PARTS: u32 = 3;
const MAX_EMPTY_PARTS: u32 = 30;

/// Lists executions. The page ends early if they are large, or if the engine has to search for long.
pub(crate) async fn list_executions(
    workflows: &Workflows,
    mut query: ListExecutions,
) -> Result<Page<Execution>> {
    let (mut parts, mut items, mut short) = (PageParts::new(query.limit), Vec::new(), 0);
    while let Some(limit) = parts.next_limit() {
        query.limit = limit;
        let page = workflows.executions(&query).await?;
        // An engine that has searched for long ends its page early.
        short += u32::from(page.items.len() < limit as usize);
        parts.add(page.items.iter().map(execution_bytes));
        items.extend(page.items);
        query.after = page.next;
        let most = if items.is_empty() { MAX_EMPTY_PARTS } else { MAX_SHORT_PARTS };
        if query.after.is_none() || short >= most {
            break;
        }
    }
    Ok(Page::new(items, query.after))
}

/// Returns the size of a task in a list.
fn task_bytes(task: &Task) -> usize {
    let of_event = |event: &TaskEvent| 256 + event.why.as_ref().map_or(0, |why| why.as_str().len());
    task.bytes()
        + task.result.as_ref().map_or(0, |result| result.as_str().len())
        + task.error.as_ref().map_or(0, |error| error.as_str().len())
        + task.events.iter().map(of_event).sum::<usize>()
}

/// Returns the size of an execution in a list.
fn execution_bytes(execution: &Execution) -> usize {
    execution.input.bytes().len() + execution.result.as_ref().map_or(0, |result| result.as_str().len())
}

#[cfg(test)]
mod tests {
    use leasehold::Leasehold;
    use leasehold::model::{NewTask, Payload, QueueName, TaskId};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_parts_of_a_page_grow_up_to_its_limit() {
        let mut parts = PageParts::new(1000);
        let mut limits = Vec::new();
        while let Some(limit) = parts.next_limit() {
            parts.add((0..limit).map(|_| 100));
            limits.push(limit);
        }
        assert_eq!(limits, [32, 128, 512, 328]);
        let mut parts = PageParts::new(1000);
        assert_eq!(parts.next_limit(), Some(32));
        parts.add(std::iter::repeat_n(1 << 20, 32));
        assert_eq!(parts.next_limit(), None, "its bytes are enough");
        assert_eq!(PageParts::new(5).next_limit(), Some(5));
    }

    #[tokio::test]
    async fn large_tasks_are_on_several_pages() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let payload = Payload::of(&"x".repeat(500_000)).unwrap();
        let queue = QueueName::new("images").unwrap();
        let new =
            |number| NewTask::new(TaskId::from_uuid(Uuid::from_u128(number)), queue.clone(), payload.clone());
        leasehold.enqueue_new((1..=100).map(new).collect()).await.unwrap();
        let tasks = leasehold.tasks().unwrap();
        let (mut found, mut pages, mut query) = (Vec::new(), 0, ListTasks::default().limit(1000));
        loop {
            let page = list_tasks(&tasks, query.clone()).await.unwrap();
            assert!(page.items.len() <= 32, "{} tasks of 500 kB", page.items.len());
            found.extend(page.items.iter().map(|task| task.id));
            pages += 1;
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        assert_eq!((found.len(), pages), (100, 4));
        assert!(found.is_sorted_by(|one, next| one > next), "newest first");
    }

    #[tokio::test]
    async fn small_tasks_are_listed_with_few_calls() {
        let (leasehold, counters) = Leasehold::connect("memory:").await.unwrap().instrumented();
        let queue = QueueName::new("mail").unwrap();
        let new = |number| {
            NewTask::new(TaskId::from_uuid(Uuid::from_u128(number)), queue.clone(), Payload::default())
        };
        leasehold.enqueue_new((1..=300).map(new).collect()).await.unwrap();
        let tasks = leasehold.tasks().unwrap();
        let calls = async || {
            let operations = counters.read().await.operations;
            let list = operations.into_iter().find(|operation| operation.op == "task_list");
            list.map_or(0, |list| list.took.counts.iter().sum::<u64>())
        };
        let pending = Some(TaskState::Pending);
        for (state, brief, expected) in [(pending, true, 2), (None, true, 2), (pending, false, 3)] {
            let before = calls().await;
            let query = ListTasks::default().state(state).brief(brief).limit(1000);
            let page = list_tasks(&tasks, query).await.unwrap();
            assert_eq!((page.items.len(), page.next), (300, None));
            assert_eq!(calls().await - before, expected, "state {state:?}, brief {brief}");
        }
    }
}
