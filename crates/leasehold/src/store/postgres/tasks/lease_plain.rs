//! Leasing of plain tasks by a shorter statement. A queue is plain as long as it has one priority
//! and its next tasks were never leased and never changed. Nearly all leases are of such queues,
//! and the general statement spends two fifths of its time on cases that they do not have.

use tokio_postgres::Row;

use super::codec::read_id;
use super::cursors::Positions;
use crate::model::{
    Fingerprint, LeaseTasks, Leased, Payload, Priority, RetryPolicy, Task, TaskKey, TaskState, Token,
};
use crate::store::postgres::columns::{Param, count, invalid_row, maybe_time, number, time, ttl, ttl_micros};
use crate::store::postgres::connection::Session;
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{BIG, INT, Sql, TEXT, UUID};

/// Leases tasks. Returns no row if nothing was leased, for whatever reason: the general statement
/// must then be executed.
pub(super) async fn lease(
    session: &Session,
    request: &LeaseTasks,
    positions: &Positions,
    now: Option<i64>,
) -> Result<Vec<Row>, PgError> {
    let Some((queue, due)) = positions.queues.first().zip(positions.due.first()) else {
        return Ok(Vec::new());
    };
    let (max, ttl, begin) = (i64::from(request.max), ttl_micros(request.ttl), i64::from(request.begin));
    let full = i64::try_from(LeaseTasks::MAX_BYTES).unwrap_or(i64::MAX);
    let params: [Param<'_>; 14] = [
        queue,
        due,
        &max,
        request.worker.as_uuid(),
        &ttl,
        &positions.cursor_priority.first(),
        &positions.cursor_since.first(),
        &positions.cursor_generation.first(),
        &positions.cursor_run_at.first(),
        &positions.cursor_id.first(),
        &begin,
        &positions.expired_since,
        &full,
        &now,
    ];
    Ok(session.query(&LEASE_PLAIN, &params).await?)
}

/// Column of the time.
pub(super) const NOW: usize = 11;

/// Reads the tasks and the generation of their priority. Columns that are the same for each plain
/// task are not sent.
pub(super) fn read(request: &LeaseTasks, rows: &[Row]) -> Result<(Leased, i64), PgError> {
    let mut leased =
        Leased { tasks: Vec::with_capacity(rows.len()), next_due: None, more: false, expired: 0 };
    let (Some(first), [queue]) = (rows.first(), request.queues.as_slice()) else {
        return Err(PgError::InvalidRow("leased tasks of an unknown queue".into()));
    };
    let (now, generation) = (time(first, NOW)?, first.try_get(13)?);
    let priority = Priority::new(first.try_get(12)?).map_err(invalid_row)?;
    leased.next_due = maybe_time(first, 14)?.map(|due| (due, now));
    let token = Token::new(number(first, NOW)?).map_err(invalid_row)?;
    for row in rows {
        let fingerprint = row.try_get::<_, Option<i64>>(5)?;
        leased.tasks.push(Task {
            id: read_id(row, 0)?,
            queue: queue.clone(),
            state: TaskState::Running,
            priority,
            run_at: time(row, 1)?,
            ready_at: time(row, 2)?,
            lock: None,
            attempt: 1,
            begun: !row.try_get::<_, bool>(10)?,
            expiries: 0,
            token,
            version: 2,
            worker: Some(request.worker),
            leased_at: Some(now),
            lease_expires_at: Some(now.plus(request.ttl)),
            progress: None,
            cancel: None,
            updated_at: now,
            finished_at: None,
            archived: false,
            fingerprint: fingerprint
                .map_or(Fingerprint::NONE, |print| Fingerprint::from_u64(print.cast_unsigned())),
            payload: Payload::trusted(row.try_get::<_, &str>(3)?),
            result: None,
            error: None,
            events: Vec::new(),
            key: row.try_get::<_, Option<&str>>(4)?.map(TaskKey::new).transpose().map_err(invalid_row)?,
            retries: RetryPolicy {
                attempts: count(row, 6)?,
                initial_delay: ttl(row, 7)?,
                max_delay: ttl(row, 8)?,
            },
            created_at: time(row, 9)?,
            runner_deadline: None,
            timeout: None,
        });
    }
    // The rows arrive in the order in which they are stored.
    leased.tasks.sort_by_key(|task| (task.ready_at, task.run_at, task.id));
    Ok((leased, generation))
}

// --- statements -----------------------------------------------------------------------------------

/// Like `LEASE`, for one queue that is plain: it is open and has one priority, no task of it is due
/// or became pending before others, no lease may have expired, and the next tasks were never leased
/// or changed, have no lock, no runner, no timeout and more than one attempt, and fit in one answer. Otherwise
/// nothing is leased.
///
/// The counts are those of the rows that were locked, and each of them is updated: a row that another
/// session changed between the read and the row lock has a higher version, so nothing is leased.
/// Rows are updated by an array of their places, which costs less than a join. The checks
/// are scalar subqueries, because the planner may turn `NOT EXISTS` into a join that reads all tasks
/// that are scheduled.
pub(crate) static LEASE_PLAIN: Sql = Sql::new(
    &[TEXT, BIG, BIG, UUID, BIG, INT, BIG, BIG, BIG, UUID, BIG, BIG, BIG],
    "WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    level AS MATERIALIZED (
        SELECT min(p.priority) AS priority, min(p.generation) AS generation, bool_or(p.has_early) AS has_early
        FROM $s.queue_priorities p WHERE p.queue = $1 HAVING count(*) = 1),
    gate AS MATERIALIZED (
        SELECT l.priority, l.priority = $6::integer AND l.generation = $8::bigint AS has_cursor
        FROM clock c CROSS JOIN level l
        WHERE (SELECT q.pause IS NULL FROM $s.task_queues q WHERE q.name = $1)
          AND (SELECT true FROM $s.tasks t
            WHERE t.state = 0 AND t.queue = $1 AND t.run_at >= $2 AND t.run_at <= c.now LIMIT 1) IS NULL
          AND (SELECT true FROM $s.tasks t
            WHERE t.state = 3 AND t.check_at >= $12 AND t.check_at <= c.now LIMIT 1) IS NULL
          AND (SELECT true FROM $s.tasks t
            WHERE t.state < 3 AND t.runner_deadline IS NOT NULL AND t.runner_deadline >= $12
              AND t.runner_deadline <= c.now LIMIT 1) IS NULL
          AND (NOT l.has_early OR (SELECT true FROM $s.tasks t
            WHERE t.state = 2 AND t.queue = $1 AND t.priority = l.priority AND t.early LIMIT 1) IS NULL)),
    next AS MATERIALIZED (
        SELECT t.* FROM gate g CROSS JOIN LATERAL (
            SELECT t.ctid AS row_id, t.ready_at, t.run_at, t.id, octet_length(t.payload) AS bytes,
                t.version = 1 AND t.token = 0 AND t.attempt = 0 AND t.expiries = 0 AND t.attempts > 1
                    AND t.lock IS NULL AND t.runner_deadline IS NULL AND t.timeout IS NULL AND t.cancel IS NULL AND t.events IS NULL AS is_plain
            FROM $s.tasks t
            WHERE t.state = 2 AND t.queue = $1 AND t.priority = g.priority AND NOT t.early
              AND (t.ready_at, t.run_at, t.id) >= (CASE WHEN g.has_cursor THEN $7::bigint ELSE 0 END,
                CASE WHEN g.has_cursor THEN $9::bigint ELSE 0 END,
                CASE WHEN g.has_cursor THEN $10::uuid ELSE '00000000-0000-0000-0000-000000000000' END)
            ORDER BY t.ready_at, t.run_at, t.id LIMIT $MAX FOR UPDATE SKIP LOCKED) t),
    batch AS MATERIALIZED (
        SELECT count(*) AS tasks FROM next HAVING bool_and(is_plain) AND sum(bytes) < $13),
    counted AS (
        INSERT INTO $s.task_counts SELECT $1, s.state, s.sign * b.tasks
        FROM batch b CROSS JOIN (VALUES (2::smallint, -1), (3::smallint, 1)) AS s (state, sign))
    UPDATE $s.tasks t SET state = 3, attempt = 1, token = (SELECT now FROM clock), version = 2, worker = $4,
        leased_at = (SELECT now FROM clock), lease_expires_at = (SELECT now + $5 FROM clock),
        check_at = (SELECT now + $5 FROM clock), updated_at = (SELECT now FROM clock), progress = NULL,
        prefetched = CASE WHEN $11::bigint <= 0 THEN true ELSE coalesce(
            (t.ready_at, t.run_at, t.id) > (SELECT n.ready_at, n.run_at, n.id FROM next n OFFSET $11 - 1 LIMIT 1), false) END
    WHERE t.ctid = ANY (ARRAY(SELECT n.row_id FROM next n WHERE (SELECT true FROM batch)))
    RETURNING t.id, t.run_at, t.ready_at, t.payload, t.key, t.fingerprint, t.attempts, t.initial_delay, t.max_delay,
        t.created_at, t.prefetched, t.leased_at, t.priority, (SELECT generation FROM level),
        CASE WHEN (SELECT tasks FROM batch) < $3 THEN (
            SELECT s.run_at FROM $s.tasks s WHERE s.state = 0 AND s.queue = $1 AND s.run_at >= $2
            ORDER BY s.run_at LIMIT 1) END",
);
