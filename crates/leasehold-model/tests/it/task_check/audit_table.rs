//! Properties of all tasks together after every step: no task is lost, locks and keys have one
//! task, counts are correct.

use leasehold_model::{Counts, Enqueued, Reuse, Task, TaskState};

use super::audit::Step;
use super::config::{key, queue, task_id, task_number};
use super::memory::Memory;
use super::properties::{Broken, Property};
use super::rules::{Op, Response};

pub(super) fn check(step: &Step, memory: &Memory, broken: &mut Broken) {
    let numbers = || memory.tasks.iter().enumerate();
    let there = numbers().all(|(task, known)| !known.added || step.after().get(task_id(task)).is_some());
    broken.check(Property::NothingIsLost, there);

    let counted = numbers().all(|(task, known)| {
        step.after().get(task_id(task)).is_none_or(|task| task.attempt == known.attempt)
    });
    broken.check(Property::AttemptsAreCounted, counted);
    let content = numbers().all(|(task, known)| {
        known.uncounted == 0 || (known.uncounted == 1 && step.system.config.tasks[task].attempts > 1)
    });
    broken.check(Property::StartsAreCounted, content);

    let mut recount = Counts::default();
    for task in step.after().tasks() {
        recount.set(task.state, recount.get(task.state) + 1);
    }
    broken.check(Property::CountsAreCorrect, (step.system.rules.counts)(step.after()) == recount);

    for queue in 0..2 {
        check_chain(step, queue, broken);
    }

    broken.check(Property::KeyIsOneTask, key_is_one_task(step, memory));
    broken.check(Property::QueueLimitIsRespected, queue_limit_is_respected(step));
}

/// Returns the tasks of one queue with the lock: by the requests, not by what the rules recorded.
fn check_chain(step: &Step, queue: usize, broken: &mut Broken) {
    let plan = |task: &Task| &step.system.config.tasks[task_number(task.id)];
    let locked = step.after().tasks().filter(|task| plan(task).lock && plan(task).queue == queue);
    let (mut heads, mut waiting) = (Vec::new(), Vec::new());
    for task in locked {
        match task.state {
            TaskState::Pending | TaskState::Running => heads.push(task),
            TaskState::Blocked => waiting.push(task),
            _ => {}
        }
    }
    broken.check(Property::OneHeadPerLock, heads.len() <= 1);
    broken.check(Property::FreeLockIsTaken, !heads.is_empty() || waiting.is_empty());
    let index = |task: &Task| (-plan(task).priority, task.ready_at, task.run_at, task.id);
    let ready = heads.iter().filter(|head| head.state == TaskState::Pending);
    let mut pairs = ready.flat_map(|head| waiting.iter().map(move |waits| (*head, *waits)));
    broken.check(Property::HeadComesFirst, pairs.all(|(head, waits)| index(head) < index(waits)));
}

fn key_is_one_task(step: &Step, memory: &Memory) -> bool {
    let owners = step.after().tasks().filter(|task| task.key.is_some()).map(|task| task.id);
    let owner = memory.key.map(task_id);
    let found = step.after().get_by_key(&queue(), &key()).map(|task| task.id);
    let one = owners.eq(owner) && found == owner;
    let (Op::Enqueue(new), Response::Enqueued(response)) = (step.op, step.response) else {
        return one;
    };
    let earlier = step.state.memory.key.map(task_id).filter(|_| new.key.is_some());
    let earlier = earlier.and_then(|id| step.before.get(id));
    let in_the_way = earlier.filter(|earlier| match new.reuse {
        Reuse::Never => true,
        Reuse::Failed => earlier.state != TaskState::Failed,
        Reuse::Finished => !earlier.state.is_terminal(),
    });
    let answered = match in_the_way {
        _ if step.before.get(new.id).is_some() => {
            *response == Enqueued::Added(new.id) && step.changed_nothing()
        }
        Some(earlier) => *response == Enqueued::Duplicate(earlier.id) && step.changed_nothing(),
        // The limit of the lock queue is another property.
        None if matches!(response, Enqueued::LockQueueFull(_)) => step.changed_nothing(),
        None => *response == Enqueued::Added(new.id),
    };
    one && answered
}

/// A new task is added if at most this number of others have or await the lock; otherwise the
/// caller is told which task has it.
fn queue_limit_is_respected(step: &Step) -> bool {
    let (Op::Enqueue(new), Response::Enqueued(response)) = (step.op, step.response) else { return true };
    let queue = step.system.config.tasks[task_number(new.id)].queue;
    let plan = |task: &Task| &step.system.config.tasks[task_number(task.id)];
    let with_lock = |task: &&Task| plan(task).lock && plan(task).queue == queue;
    let in_line = |task: &&Task| !task.state.is_terminal() && task.state != TaskState::Scheduled;
    let others: Vec<_> = step.before.tasks().filter(with_lock).filter(in_line).collect();
    let plan = &step.system.config.tasks[task_number(new.id)];
    let full = plan.room.is_some_and(|room| others.len() > room as usize);
    match response {
        Enqueued::Added(id) => step.before.get(*id).is_some() || !full,
        Enqueued::LockQueueFull(head) => {
            let has_it = |task: &&Task| matches!(task.state, TaskState::Pending | TaskState::Running);
            full && others.into_iter().find(has_it).is_some_and(|task| task.id == *head)
        }
        Enqueued::Duplicate(_) | Enqueued::KeyReused(_) => true,
    }
}
