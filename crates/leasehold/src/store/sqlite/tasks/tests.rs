//! Cost of calls in steps of SQLite's virtual machine: must not depend on unrelated tasks.

use rusqlite::types::Value;
use rusqlite::{Connection, StatementStatus, params, params_from_iter};
use uuid::Uuid;

use crate::model::{
    AttemptResult, FinishedFilter, HeldTask, Holder, LeaseTasks, NewTask, Payload, QueueName, Retry, Settle,
    Settled, Task, TaskId, TaskOp, TaskState, Timestamp, Ttl, WorkerId, WorkerInfo,
};
use crate::store::ListTasks;
use crate::store::sqlite::schema::{ONE_INDEX, TABLES};
use crate::store::sqlite::tasks::maintenance::{FinishedSearch, MAX_EXAMINED, RetentionOp};
use crate::store::sqlite::tasks::purge_cursors::PurgeCursors;
use crate::store::sqlite::tasks::{QueueIds, TaskTransaction, sql};

const NOW: i64 = 1_700_000_000_000_000;
const LATER: i64 = NOW + 3_600_000_000;

/// All statements that the calls below use.
const STATEMENTS: [&str; 25] = [
    sql::INSERT,
    sql::INSERT_MANY,
    sql::INSERT_PAYLOAD,
    sql::LOAD,
    sql::EXISTS,
    sql::KEY_OWNER,
    sql::SAVE_LEASE,
    sql::SAVE_HEARTBEAT,
    sql::SAVE_TRANSITION,
    sql::READY,
    sql::DUE,
    sql::NEXT_DUE,
    sql::EXPIRED,
    sql::HEAD,
    sql::FIRST_BLOCKED,
    sql::QUEUE_ID,
    sql::QUEUE_NAME,
    sql::QUEUE_IDS,
    sql::ADD_COUNTS,
    sql::QUEUES,
    sql::COUNT_READY,
    sql::ALL_DUE,
    sql::FINISHED,
    sql::DELETE,
    sql::DELETE_PAYLOAD,
];

/// Adds many tasks at once.
fn fill(conn: &Connection, numbers: std::ops::Range<u32>, state: TaskState, priority: i64, run_at: i64) {
    let sql = "WITH RECURSIVE n (n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM n WHERE n < ?2 - 1)
        INSERT INTO leasehold_tasks (id, queue, state, priority, list, sort, tie, run_at, ready_at, fingerprint, lock, attempt,
            token, version, lease_expires_at, created_at, updated_at, finished_at, archived, payload)
        SELECT unhex(printf('%032x', n)), 1, ?3, ?4,
            CASE ?3 WHEN 0 THEN -9 WHEN 1 THEN '1 lock-' || n WHEN 2 THEN 1 WHEN 3 THEN 0 ELSE -1 END,
            CASE WHEN ?3 IN (1, 2) THEN ?5 + n - 30000000 * ?4 WHEN ?3 >= 4 THEN ?5 ELSE ?6 + n END,
            CASE WHEN ?3 IN (1, 2) THEN ?6 + n END, ?6 + n, ?5 + n, 0,
            CASE WHEN ?3 = 1 OR n % 1000 = 999 THEN 'lock-' || n END, 0, 0, 1, CASE WHEN ?3 = 3 THEN ?6 + n END, ?5, ?5,
            CASE WHEN ?3 >= 4 THEN ?5 END, 0, '1' FROM n";
    let values = params![numbers.start, numbers.end, state as i64, priority, NOW, run_at];
    conn.execute(sql, values).unwrap();
}

/// Counts the virtual machine steps of `work`, which must neither scan nor sort.
fn steps<T>(
    conn: &Connection,
    queues: &mut QueueIds,
    work: impl FnOnce(&mut TaskTransaction<'_>) -> T,
) -> (i32, T) {
    let count = |status| {
        let of = |sql| conn.prepare_cached(sql).unwrap().reset_status(status);
        STATEMENTS.iter().map(|sql| of(sql)).sum::<i32>()
    };
    let all = [StatementStatus::VmStep, StatementStatus::FullscanStep, StatementStatus::Sort];
    let _before = all.map(count);
    conn.execute_batch("BEGIN").unwrap();
    let mut tx =
        TaskTransaction::new(conn, queues, Timestamp::from_micros(u64::try_from(NOW).unwrap() + 1_000_000));
    let done = work(&mut tx);
    tx.finish().unwrap();
    conn.execute_batch("COMMIT").unwrap();
    let [steps, scanned, sorts] = all.map(count);
    assert_eq!((scanned, sorts), (0, 0), "a scan or a sort");
    (steps, done)
}

/// Measures each call: enqueue one task, lease ten, send their heartbeat, settle them, recover
/// nothing, purge nothing.
fn costs(conn: &Connection, next: u128) -> Vec<(&'static str, i32)> {
    let (queues, queue) = (&mut QueueIds::default(), QueueName::new("q").unwrap());
    let id = TaskId::from_uuid(Uuid::from_u128(next));
    let new = [NewTask::new(id, queue.clone(), Payload::of("1").unwrap())];
    let worker = WorkerId::from_uuid(Uuid::from_u128(7));
    let ttl = Ttl::from_secs(30);
    let request = LeaseTasks::new(worker, vec![queue.clone()], 10, ttl);
    // Fills the cache of queue ids.
    steps(conn, queues, |tx| tx.queues.id(tx.conn, &queue).unwrap());
    let (enqueue, _) = steps(conn, queues, |tx| tx.enqueue(&new).unwrap());
    let (lease, leased) = steps(conn, queues, |tx| tx.lease(&request).unwrap());
    assert_eq!(leased.tasks.len(), 10);
    let held = |task: &Task| HeldTask::new(task.id, task.token);
    let held: Vec<_> = leased.tasks.iter().map(held).collect();
    let info = WorkerInfo {
        id: worker,
        host: "host".to_owned(),
        pid: 1,
        version: String::new(),
        queues: vec![queue],
        slots: 10,
        busy: 10,
        draining: false,
        every: ttl,
    };
    let (heartbeat, _) = steps(conn, queues, |tx| tx.heartbeat(&info, &held, ttl).unwrap());
    let settle = |task: &Task| Settle { id: task.id, token: task.token, result: AttemptResult::Done(None) };
    let settle: Vec<_> = leased.tasks.iter().map(settle).collect();
    let (settle, settled) = steps(conn, queues, |tx| tx.settle(&settle).unwrap());
    assert!(settled.iter().all(|settled| *settled == Settled::Now(TaskState::Succeeded)));
    let (recover, _) = steps(conn, queues, |tx| tx.recover(100).unwrap());
    // All tasks finished later than this.
    let filter = FinishedFilter { queue: None, state: None, before: Timestamp::from_micros(1), limit: 100 };
    let (purge, purged) = steps(conn, queues, |tx| apply_retention(tx, RetentionOp::Purge, &filter));
    assert_eq!(purged, 0);
    let calls = [("enqueue", enqueue), ("lease", lease), ("heartbeat", heartbeat), ("settle", settle)];
    calls.into_iter().chain([("recover", recover), ("purge", purge)]).collect()
}

/// Archives or purges finished tasks as the store does, in one transaction; returns their number.
fn apply_retention(tx: &mut TaskTransaction<'_>, op: RetentionOp, filter: &FinishedFilter) -> u64 {
    apply_retention_since(tx, op, filter, i64::MIN)
}

/// Like [`apply_retention`], without the tasks that finished before a time.
fn apply_retention_since(
    tx: &mut TaskTransaction<'_>,
    op: RetentionOp,
    filter: &FinishedFilter,
    since: i64,
) -> u64 {
    let (mut searches, limit) = (FinishedSearch::of(op, since), filter.limit as usize);
    for search in &mut searches {
        while search.needs_more(limit) {
            *search = tx.search_finished(filter, search.clone(), limit).unwrap();
        }
    }
    tx.apply_retention(op, &FinishedSearch::take(&mut searches, limit)).unwrap()
}

#[test]
fn the_cost_of_a_call_does_not_depend_on_unrelated_tasks() {
    let conn = Connection::open_in_memory().unwrap();
    conn.set_prepared_statement_cache_capacity(96);
    conn.execute_batch(TABLES).unwrap();
    conn.execute_batch(ONE_INDEX).unwrap();
    conn.execute("INSERT INTO leasehold_queues (id, name) VALUES (1, 'q')", []).unwrap();
    fill(&conn, 0..10_000, TaskState::Pending, 0, NOW);
    let few = costs(&conn, 10_000_000);
    fill(&conn, 100_000..200_000, TaskState::Scheduled, 1000, LATER);
    fill(&conn, 200_000..300_000, TaskState::Succeeded, 0, NOW);
    fill(&conn, 300_000..310_000, TaskState::Blocked, 1000, NOW);
    fill(&conn, 310_000..320_000, TaskState::Running, 0, LATER);
    fill(&conn, 1_000_000..1_290_000, TaskState::Pending, 0, NOW);
    // Queues without tasks.
    let queues = "WITH RECURSIVE n (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM n WHERE n < 10000)
        INSERT INTO leasehold_queues (id, name) SELECT n, 'queue-' || n FROM n";
    conn.execute(queues, []).unwrap();
    let many = costs(&conn, 10_000_001);
    for ((call, few), (_, many)) in few.iter().zip(&many) {
        // A few more steps are needed to find entries that are not due.
        assert!(*many <= few + few / 10 + 10, "{call}: {few} steps with few tasks, {many} with many");
        assert!(*few > 0, "{call} was not measured");
    }
}

/// The list of finished tasks is one for all queues.
#[test]
fn a_search_for_finished_tasks_of_a_queue_examines_few_tasks_at_a_time() {
    let conn = Connection::open_in_memory().unwrap();
    conn.set_prepared_statement_cache_capacity(96);
    conn.execute_batch(&[TABLES, ONE_INDEX].concat()).unwrap();
    conn.execute("INSERT INTO leasehold_queues (id, name) VALUES (1, 'large'), (2, 'small')", []).unwrap();
    let tasks = 2 * MAX_EXAMINED + 1;
    fill(&conn, 0..tasks, TaskState::Failed, 0, NOW);
    let newest = "UPDATE leasehold_tasks SET sort = sort + rowid, finished_at = finished_at + rowid,
        queue = CASE rowid WHEN (SELECT max(rowid) FROM leasehold_tasks) THEN 2 ELSE 1 END";
    conn.execute(newest, []).unwrap();
    let (queue, before) = (QueueName::new("small").ok(), Timestamp::from_micros(u64::MAX));
    let filter = FinishedFilter { queue, state: None, before, limit: 9 };
    let mut queues = QueueIds::default();
    let mut search = FinishedSearch::of(RetentionOp::Purge, i64::MIN).remove(0);
    let mut costs = Vec::new();
    while search.needs_more(9) {
        let (cost, next) = steps(&conn, &mut queues, |tx| tx.search_finished(&filter, search, 9).unwrap());
        costs.push(cost);
        search = next;
    }
    assert_eq!(costs.len(), 3);
    assert!(costs[0].abs_diff(costs[1]) < 100 && costs[2] < costs[1] / 100, "{costs:?}");
    // A task that was retried after it was found stays.
    let found = FinishedSearch::take(&mut [search], 9);
    let mut tx = TaskTransaction::new(&conn, &mut queues, Timestamp::from_micros(1));
    let id = TaskId::from_uuid(Uuid::from_u128(u128::from(tasks - 1)));
    tx.change_by_id(&id, &TaskOp::Retry(Retry { by: Holder::new("ada").unwrap() })).unwrap().unwrap();
    assert_eq!((found.len(), tx.apply_retention(RetentionOp::Purge, &found).unwrap()), (1, 0));
    assert_eq!(tx.load(&id).unwrap().unwrap().state, TaskState::Pending);
    assert_eq!(apply_retention(&mut tx, RetentionOp::Purge, &FinishedFilter { queue: None, ..filter }), 9);
}

/// One queue keeps its tasks for a shorter time than the others.
#[test]
fn a_repeated_purge_of_a_queue_examines_no_tasks_that_others_keep() {
    let conn = Connection::open_in_memory().unwrap();
    conn.set_prepared_statement_cache_capacity(96);
    conn.execute_batch(&[TABLES, ONE_INDEX].concat()).unwrap();
    conn.execute("INSERT INTO leasehold_queues (id, name) VALUES (1, 'large'), (2, 'mail')", []).unwrap();
    fill(&conn, 0..10_000, TaskState::Succeeded, 0, NOW);
    // Each has ended at the microsecond of its number, and one in a thousand is of the small queue.
    let spread = "UPDATE leasehold_tasks SET sort = rowid, finished_at = rowid,
        queue = CASE rowid % 1000 WHEN 0 THEN 2 ELSE 1 END";
    conn.execute(spread, []).unwrap();
    let (cursors, mut queues) = (PurgeCursors::default(), QueueIds::default());
    let mut purge = |before| {
        let before = Timestamp::from_micros(before);
        let filter = FinishedFilter { queue: QueueName::new("mail").ok(), state: None, before, limit: 100 };
        let start = cursors.start(&filter, Timestamp::from_micros(u64::MAX));
        let work = |tx: &mut TaskTransaction<'_>| {
            apply_retention_since(tx, RetentionOp::Purge, &filter, start.since)
        };
        let (cost, purged) = steps(&conn, &mut queues, work);
        cursors.finish(&filter, start);
        (cost, purged)
    };
    let (all, purged) = purge(9_500);
    assert_eq!(purged, 9);
    let (nothing, purged) = purge(9_501);
    assert_eq!(purged, 0);
    assert!(nothing < all / 100, "{all} steps at first, {nothing} for a task that was added");
    assert_eq!(purge(10_001).1, 1);
}

#[test]
fn no_statement_of_a_frequent_call_scans_the_tasks() {
    let conn = Connection::open_in_memory().unwrap();
    conn.execute_batch(&[TABLES, ONE_INDEX].concat()).unwrap();
    let others = [sql::HAS_HEAD, sql::COUNT_BLOCKED, sql::NEXT_DUE_BY_NAME, sql::KEYED, sql::ARCHIVE];
    for sql in STATEMENTS.iter().chain(&others).chain(&sql::LIST_FEW).chain(&sql::LIST_FEW_OF_QUEUE) {
        let mut plan = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let mut steps = plan.raw_query();
        while let Some(step) = steps.next().unwrap() {
            let step: String = step.get(3).unwrap();
            assert!(!step.starts_with("SCAN leasehold_tasks"), "{sql}: {step}");
        }
    }
}

/// Lists the tasks of a queue; returns their number and the virtual machine steps of the query.
fn list(conn: &Connection, query: &ListTasks) -> (usize, i32) {
    let statements =
        [sql::LIST, sql::RANGE_END, sql::LIST_UNSUCCESSFUL, sql::LOAD, sql::QUEUES, sql::QUEUE_ID];
    let statements: Vec<&str> =
        statements.into_iter().chain(sql::LIST_FEW).chain(sql::LIST_FEW_OF_QUEUE).collect();
    let count = || {
        let of = |sql: &&str| conn.prepare_cached(sql).unwrap().reset_status(StatementStatus::VmStep);
        statements.iter().map(of).sum::<i32>()
    };
    count();
    let mut queues = QueueIds::default();
    let mut tx = TaskTransaction::new(conn, &mut queues, Timestamp::from_micros(1));
    let (found, next) = tx.list_range(query, None, 50).unwrap();
    assert_eq!(next, None, "all tasks of the queue were found at once");
    (found.len(), count())
}

#[test]
fn the_cost_of_a_list_of_a_small_queue_does_not_depend_on_the_tasks_of_other_queues() {
    let conn = Connection::open_in_memory().unwrap();
    conn.set_prepared_statement_cache_capacity(96);
    conn.execute_batch(&[TABLES, ONE_INDEX].concat()).unwrap();
    let states = [TaskState::Scheduled, TaskState::Blocked, TaskState::Pending, TaskState::Running];
    for (number, state) in (0..).zip(states) {
        fill(&conn, number * 10_000..(number + 1) * 10_000, state, 0, NOW);
    }
    // The oldest task in each state is one of the small queue, and so is one that failed.
    let small = "
        INSERT INTO leasehold_queues (id, name, scheduled, blocked, pending, running)
            VALUES (1, 'large', 9999, 9999, 9999, 10000);
        INSERT INTO leasehold_queues (id, name, scheduled, blocked, pending, failed) VALUES (12, 'small', 1, 1, 1, 1);
        UPDATE leasehold_tasks SET queue = 12, list = -20 WHERE id = unhex(printf('%032x', 0));
        UPDATE leasehold_tasks SET queue = 12, list = '12 a lock', lock = 'a lock' WHERE id = unhex(printf('%032x', 10000));
        UPDATE leasehold_tasks SET queue = 12, list = 12 WHERE id = unhex(printf('%032x', 20000));";
    conn.execute_batch(small).unwrap();
    fill(&conn, 40_000..40_001, TaskState::Failed, 0, NOW);
    conn.execute("UPDATE leasehold_tasks SET queue = 12 WHERE state = 5", []).unwrap();
    let query = ListTasks::default().queue(QueueName::new("small").unwrap()).brief(true).limit(50);
    for state in [TaskState::Scheduled, TaskState::Blocked, TaskState::Pending, TaskState::Failed] {
        let (found, steps) = list(&conn, &query.clone().state(state));
        assert_eq!(found, 1, "{state:?}");
        assert!((1..2000).contains(&steps), "{state:?}: {steps} steps");
    }
    // Running tasks of all queues are in one list, which the number of slots of all workers bounds.
    let (found, steps) = list(&conn, &query);
    assert_eq!(found, 4);
    assert!((1..300_000).contains(&steps), "{steps} steps");
}

/// A file of version 1: two tasks of queue `q` in each state, the second of which comes first.
const VERSION_1: &str = "
    INSERT INTO leasehold_queues (id, name, scheduled, blocked, pending, running, succeeded, failed)
        VALUES (1, 'q', 2, 2, 2, 2, 2, 2);
    WITH RECURSIVE n (n, state) AS (SELECT 0, 0 UNION ALL SELECT n + 1, (n + 1) / 2 FROM n WHERE n < 11)
    INSERT INTO leasehold_tasks (id, queue, state, priority, rank, run_at, ready_at, fingerprint, lock, attempt, token,
        version, lease_expires_at, created_at, updated_at, finished_at, archived, payload)
    SELECT unhex(printf('%032x', n)), 1, state, 0, 1000 - n, 2000 - n, 2000 - n, 0, CASE WHEN state = 1 THEN 'a lock' END,
        state >= 3, CASE WHEN state >= 3 THEN 7 ELSE 0 END, 1, CASE WHEN state = 3 THEN 5000 - n END, 1, 1,
        CASE WHEN state >= 4 THEN 3000 - n END, n = 9, '1' FROM n;";

#[test]
fn the_tasks_of_a_file_of_version_1_are_in_their_lists() {
    let conn = Connection::open_in_memory().unwrap();
    conn.execute_batch(&[TABLES, VERSION_1, ONE_INDEX].concat()).unwrap();
    let mut queues = QueueIds::default();
    let found = |sql: &str, list: &Value, limit: i64, time: Option<i64>| {
        let mut values = vec![list.clone()];
        values.extend(time.map(Value::Integer));
        values.extend((sql != sql::FIRST_BLOCKED).then_some(Value::Integer(limit)));
        let mut select = conn.prepare(sql).unwrap();
        let ids = select.query_map(params_from_iter(values), |row| row.get::<_, Vec<u8>>(0)).unwrap();
        ids.map(|id| id.unwrap()[15]).collect::<Vec<_>>()
    };
    let integer = Value::Integer;
    assert_eq!(found(sql::DUE, &integer(-9), 9, Some(5000)), [1, 0]);
    assert_eq!(found(sql::DUE, &integer(-9), 9, Some(1999)), [1]);
    assert_eq!(found(sql::FIRST_BLOCKED, &Value::Text("1 a lock".to_owned()), 1, None), [3]);
    assert_eq!(found(sql::READY, &integer(1), 9, None), [5, 4]);
    let mut tx = TaskTransaction::new(&conn, &mut queues, Timestamp::from_micros(4_993));
    assert_eq!(tx.expire(9).unwrap().expired(), 1);
    let mut purge = |archived, limit| {
        let before = Timestamp::from_micros(4_000);
        let filter = FinishedFilter { queue: None, state: None, before, limit };
        let op = if archived { RetentionOp::Archive } else { RetentionOp::Purge };
        apply_retention(&mut tx, op, &filter)
    };
    assert_eq!((purge(true, 1), purge(false, 9)), (1, 4));
}
