//! Leasing of tasks, in one statement; of plain tasks in a shorter one. Due tasks are made pending
//! first; if some are expected, both statements are sent together.

use std::collections::BTreeMap;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::codec::{TASK_COLUMNS, read_task};
use super::cursors::Positions;
use super::lease_plain;
use super::maintenance::{RecoveryPass, expire_since, promote_locked};
use crate::model::{LeaseTasks, Leased, Priority, QueueName, TaskTable};
use crate::store::postgres::columns::{Param, invalid_row, maybe_time, time, ttl_micros};
use crate::store::postgres::connection::Session;
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{BIG, BIGS, BOOL, INTS, Sql, TEXTS, UUID, UUIDS};

pub(super) struct LeaseResponse {
    /// Result of expiring leases, if some had expired.
    pub(super) expired: Option<RecoveryPass>,
    /// Time at which no lease had expired.
    pub(super) none_expired: Option<i64>,
    /// Time at which all due tasks were made pending, and the queues concerned. `None` if more are
    /// due.
    pub(super) promoted: Option<(i64, Vec<QueueName>)>,
    pub(super) due: bool,
    /// Whether the statement for plain tasks leased nothing, but there were tasks.
    pub(super) not_plain: bool,
    rows: LeasedRows,
}

enum LeasedRows {
    General(Vec<Row>),
    Plain(Vec<Row>),
}

/// Leased tasks, and of each queue and priority that was read with a cursor the last of them, as an
/// index, with the generation of the priority.
type LeasedWithLast = (Leased, Vec<(usize, i64)>);

pub(super) async fn lease(
    session: &Session,
    request: &LeaseTasks,
    positions: &Positions,
    now: Option<i64>,
) -> Result<LeaseResponse, PgError> {
    if positions.tries_plain {
        let rows = lease_plain::lease(session, request, positions, now).await?;
        if let Some(first) = rows.first() {
            let at: i64 = first.try_get(lease_plain::NOW)?;
            return Ok(LeaseResponse {
                expired: None,
                none_expired: Some(at),
                promoted: Some((at, request.queues.clone())),
                due: false,
                not_plain: false,
                rows: LeasedRows::Plain(rows),
            });
        }
    }
    // Expired leases must be ended before tasks are leased.
    let general = lease_since(session, request, positions, Some(positions.expired_since), now).await?;
    if !flag(&general.rows, EXPIRED_FIRST)? {
        let none_expired = general.rows.first().map(|row| row.try_get(TASK_COLUMNS + 1)).transpose()?;
        // Tasks that are due, or that have just arrived, do not make a queue less plain.
        let has_tasks = has_tasks(&general.rows)?;
        let not_plain = positions.tries_plain && !general.due && has_tasks;
        return Ok(LeaseResponse { none_expired, not_plain, ..general.into() });
    }
    let expired = match expire_since(session, TaskTable::MAX_EXPIRED, positions.expired_since, now).await {
        // A row that cannot be read must not prevent other tasks from being leased.
        Err(PgError::InvalidRow(error)) => {
            tracing::warn!(%error, "expired leases could not be ended");
            session.simple_query("ROLLBACK").await?;
            None
        }
        expired => Some(expired?),
    };
    let general = lease_since(session, request, positions, None, now).await?;
    Ok(LeaseResponse { expired, ..general.into() })
}

/// Result of the general statement.
struct GeneralResponse {
    promoted: Option<(i64, Vec<QueueName>)>,
    due: bool,
    rows: Vec<Row>,
}

impl From<GeneralResponse> for LeaseResponse {
    fn from(general: GeneralResponse) -> Self {
        let GeneralResponse { promoted, due, rows } = general;
        let rows = LeasedRows::General(rows);
        Self { expired: None, none_expired: None, promoted, due, not_plain: false, rows }
    }
}

async fn lease_since(
    session: &Session,
    request: &LeaseTasks,
    positions: &Positions,
    expired_since: Option<i64>,
    now: Option<i64>,
) -> Result<GeneralResponse, PgError> {
    let (max, ttl, begin) = (i64::from(request.max), ttl_micros(request.ttl), i64::from(request.begin));
    let full = i64::try_from(LeaseTasks::MAX_BYTES).unwrap_or(i64::MAX);
    let lease = |due_first: &'static bool| -> [Param<'_>; 18] {
        [
            &positions.queues,
            &positions.due,
            &max,
            request.worker.as_uuid(),
            &ttl,
            &positions.cursor_queue,
            &positions.cursor_priority,
            &positions.cursor_since,
            &positions.cursor_generation,
            due_first,
            &positions.cursor_run_at,
            &positions.cursor_id,
            &begin,
            &request.idle,
            &expired_since,
            &full,
            &request.waits_for_locks,
            &now,
        ]
    };
    let response = |promoted, due, rows| GeneralResponse { promoted, due, rows };
    if !positions.expects_due {
        let rows = session.query(&LEASE, &lease(&true)).await?;
        if flag(&rows, EXPIRED_FIRST)? {
            return Ok(response(None, false, rows));
        }
        if !flag(&rows, DUE_FIRST)? {
            let promoted = nothing_due(&rows)?.map(|now| (now, request.queues.clone()));
            return Ok(response(promoted, false, rows));
        }
    }
    session.prepare(&[&PROMOTE, &LEASE_LOCKED_DUE]).await?;
    let promote: [Param<'_>; 4] = [&positions.queues, &positions.due, &expired_since, &now];
    let lease_locked = lease(&true);
    let (promoted, leased) = tokio::join!(biased; session.query(&PROMOTE, &promote), session.query(&LEASE_LOCKED_DUE, &lease_locked));
    let (promoted, rows) = (promoted?, leased?);
    let due = promoted.first().map_or(Ok(0), |row| row.try_get::<_, i64>(1))? > 0;
    if flag(&rows, EXPIRED_FIRST)? {
        return Ok(response(None, true, rows));
    }
    if !flag(&rows, DUE_FIRST)? {
        return Ok(response(fully_promoted(&promoted)?, due, rows));
    }
    let locked = session.query(&DUE_LOCKED, &[&positions.queues, &now]).await?;
    promote_locked(session, &locked, now).await?;
    let rows = session.query(&LEASE_LOCKED_DUE, &lease(&false)).await?;
    Ok(response(None, true, rows))
}

impl LeaseResponse {
    /// Returns the tasks, with the time at which the next one is due; and those from which cursors
    /// advance.
    pub(super) fn read(&self, request: &LeaseTasks) -> Result<LeasedWithLast, PgError> {
        match &self.rows {
            LeasedRows::General(rows) => {
                let (mut leased, last) = read_general(rows)?;
                leased.expired = self.expired.as_ref().map_or(0, |pass| pass.recovered.expired());
                Ok((leased, last))
            }
            LeasedRows::Plain(rows) => {
                let (leased, generation) = lease_plain::read(request, rows)?;
                let last = leased.tasks.len().checked_sub(1).map(|last| (last, generation));
                Ok((leased, last.into_iter().collect()))
            }
        }
    }
}

fn read_general(rows: &[Row]) -> Result<LeasedWithLast, PgError> {
    let mut leased = Leased { tasks: Vec::new(), next_due: None, more: false, expired: 0 };
    let mut last: BTreeMap<(QueueName, Priority), (usize, i64)> = BTreeMap::new();
    for row in rows {
        let due = maybe_time(row, TASK_COLUMNS + 4)?;
        leased.next_due = due.map(|due| Ok::<_, PgError>((due, time(row, TASK_COLUMNS + 1)?))).transpose()?;
        leased.more = row.try_get(TASK_COLUMNS + 5)?;
        if row.try_get::<_, Option<uuid::Uuid>>(0)?.is_some() {
            let task = read_task(row)?;
            // A task that was read without a cursor advances none.
            if let Some(generation) = row.try_get::<_, Option<i64>>(TASK_COLUMNS)? {
                last.insert((task.queue.clone(), task.priority), (leased.tasks.len(), generation));
            }
            leased.tasks.push(task);
        }
    }
    Ok((leased, last.into_values().collect()))
}

fn has_tasks(rows: &[Row]) -> Result<bool, PgError> {
    Ok(rows.first().map(|row| row.try_get::<_, Option<uuid::Uuid>>(0)).transpose()?.flatten().is_some())
}

/// Returns the time at which no task was due in any of the queues, or `None` if one of the queues
/// is not open.
fn nothing_due(rows: &[Row]) -> Result<Option<i64>, PgError> {
    let Some(row) = rows.first() else { return Ok(None) };
    let all_open: bool = row.try_get(TASK_COLUMNS + 3)?;
    Ok(Some(row.try_get(TASK_COLUMNS + 1)?).filter(|_| all_open))
}

/// Column that states whether nothing was leased because due tasks must be made pending first.
const DUE_FIRST: usize = TASK_COLUMNS + 2;
/// Column that states whether nothing was leased because expired leases must be ended first.
const EXPIRED_FIRST: usize = TASK_COLUMNS + 6;

fn flag(rows: &[Row], column: usize) -> Result<bool, PgError> {
    Ok(rows.first().map(|row| row.try_get(column)).transpose()?.unwrap_or(false))
}

/// Returns the time at which all due tasks were made pending, and the queues; `None` if more are due.
fn fully_promoted(promoted: &[Row]) -> Result<Option<(i64, Vec<QueueName>)>, PgError> {
    let Some(row) = promoted.first() else { return Ok(None) };
    if row.try_get::<_, i64>(1)? >= i64::from(TaskTable::MAX_PROMOTED) {
        return Ok(None);
    }
    let names: Vec<&str> = row.try_get(2)?;
    let names: Result<_, _> = names.into_iter().map(QueueName::new).collect();
    Ok(Some((row.try_get(0)?, names.map_err(invalid_row)?)))
}

// --- statements -----------------------------------------------------------------------------------

/// Leases the next tasks of each open queue in `$1`: along the index, from the cursor on, merged by
/// rank over several queues and priorities. Tasks that became pending before others (`early`) are
/// read from the beginning, and move no cursor. With `$10`, leases nothing if due tasks must be
/// made pending first; for `LEASE_LOCKED_DUE` these are only tasks with a lock, which the slow path
/// makes pending. With `$15`, leases nothing if leases, or the deadlines of runners, may have
/// expired since then, which the slow path ends first.
///
/// The worker starts the first `$13` tasks at once; `$14` means that it has no other; `$17`, that it
/// starts a task with a lock only once it has the lock. The answer
/// ends as `LeaseTasks::includes_next` of the model defines: before a task that must not be prefetched,
/// and around one that runs alone. There is always a row, with the time, whether all queues are
/// open, when the next task is due, and whether the answer was cut short.
const LEASE_TEMPLATE: &str = "
    WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    open AS MATERIALIZED (
        SELECT a.name, a.since FROM unnest($1::text[], $2::bigint[]) AS a (name, since)
        JOIN $s.task_queues q ON q.name = a.name WHERE q.pause IS NULL),
    checks AS MATERIALIZED (
        SELECT c.now, (SELECT count(*) FROM open) = cardinality($1) AS all_open, $10 AND EXISTS (
            SELECT FROM open o CROSS JOIN LATERAL (
                SELECT FROM $s.tasks t
                WHERE t.state = 0 $DUE_FILTER AND t.queue = o.name AND t.run_at >= o.since AND t.run_at <= c.now
                LIMIT 1) due) AS due_first,
            EXISTS (SELECT FROM $s.tasks t
                WHERE t.state = 3 AND t.check_at >= $15::bigint AND t.check_at <= c.now)
            OR ($15::bigint IS NOT NULL AND EXISTS (SELECT FROM $s.tasks t
                WHERE t.state < 3 AND t.runner_deadline IS NOT NULL AND t.runner_deadline >= $15::bigint
                  AND t.runner_deadline <= c.now)) AS expired_first
        FROM clock c),
    priorities AS MATERIALIZED (
        SELECT p.queue, p.priority, e.early, CASE WHEN NOT e.early THEN p.generation END AS generation,
            CASE WHEN k.generation = p.generation THEN k.since ELSE 0 END AS since,
            CASE WHEN k.generation = p.generation THEN k.run_at ELSE 0 END AS run_at,
            CASE WHEN k.generation = p.generation THEN k.id ELSE '00000000-0000-0000-0000-000000000000' END AS id
        FROM checks x CROSS JOIN open o JOIN $s.queue_priorities p ON p.queue = o.name
        JOIN (VALUES (false), (true)) AS e (early) ON NOT e.early OR p.has_early
        LEFT JOIN unnest($6::text[], $7::integer[], $8::bigint[], $9::bigint[], $11::bigint[], $12::uuid[])
            AS k (queue, priority, since, generation, run_at, id)
            ON k.queue = p.queue AND k.priority = p.priority AND NOT e.early
        WHERE NOT x.due_first AND NOT x.expired_first),
    candidates AS MATERIALIZED (
        SELECT t.row_id, p.generation, row_number() OVER (ORDER BY $RANK, t.run_at, t.id) AS nth,
            sum(t.bytes) OVER (ORDER BY $RANK, t.run_at, t.id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before,
            t.expiries >= 2 OR (t.expiries > 0 AND t.attempt + 1 >= t.attempts) AS runs_alone,
            t.token = 0 AND t.attempts > 1 AS may_prefetch
        FROM priorities p CROSS JOIN LATERAL (
            SELECT t.ctid AS row_id, t.id, t.ready_at, t.run_at, t.priority, t.expiries, t.attempt, t.attempts, t.token,
                octet_length(t.payload) AS bytes
            FROM $s.tasks t
            WHERE t.state = 2 AND t.queue = p.queue AND t.priority = p.priority AND t.early = p.early
              AND (t.ready_at, t.run_at, t.id) >= (p.since, p.run_at, p.id)
            ORDER BY t.ready_at, t.run_at, t.id LIMIT $MAX FOR UPDATE SKIP LOCKED) t
        ORDER BY $RANK, t.run_at, t.id LIMIT $MAX),
    -- The position of the first task that is not leased.
    cutoff AS MATERIALIZED (
        SELECT coalesce(min(CASE WHEN n.runs_alone THEN greatest(n.nth, 2)
            WHEN n.nth > $13 AND NOT n.may_prefetch THEN n.nth END), $3 + 1) AS nth FROM candidates n),
    leased AS (
        UPDATE $s.tasks t SET state = 3, attempt = t.attempt + 1, token = greatest(t.token + 1, x.now),
            version = t.version + 1, worker = $4, leased_at = x.now, lease_expires_at = x.now + $5,
            check_at = x.now + $5, prefetched = CASE WHEN $17 AND t.lock IS NOT NULL THEN true
                WHEN n.runs_alone THEN NOT $14 ELSE n.nth > $13 END,
            progress = NULL, updated_at = x.now
        FROM candidates n CROSS JOIN checks x CROSS JOIN cutoff
        WHERE t.ctid = n.row_id AND n.nth < cutoff.nth AND (n.bytes_before IS NULL OR n.bytes_before < $16)
        RETURNING $TASK, n.generation),
    counted AS (
        INSERT INTO $s.task_counts
        SELECT o.name, s.state, s.sign * c.tasks FROM open o
        CROSS JOIN LATERAL (SELECT count(*) AS tasks FROM leased l WHERE l.queue = o.name) c
        CROSS JOIN (VALUES (2::smallint, -1), (3::smallint, 1)) AS s (state, sign) WHERE c.tasks > 0)
    SELECT t.*, x.now, x.due_first, x.all_open, CASE WHEN (SELECT count(*) FROM leased) < $3
            AND (SELECT coalesce(sum(octet_length(payload)), 0) FROM leased) < $16 THEN (
            SELECT min(s.run_at) FROM open o CROSS JOIN LATERAL (
                SELECT s.run_at FROM $s.tasks s WHERE s.state = 0 AND s.queue = o.name AND s.run_at >= o.since
                ORDER BY s.run_at LIMIT 1) s) END,
        (SELECT count(*) FROM candidates n, cutoff WHERE n.nth >= cutoff.nth) > 0, x.expired_first
    FROM checks x LEFT JOIN leased t ON true
    ORDER BY $RANK, t.run_at, t.id";

/// Makes due tasks without a lock pending, like `TaskOp::Promote` of the model. With `$3`, does nothing if leases, or the deadlines of
/// runners, may have expired since then, which the slow path ends first.
pub(crate) static PROMOTE: Sql = Sql::new(
    &[TEXTS, BIGS, BIG],
    "WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    open AS MATERIALIZED (
        SELECT a.name, a.since FROM unnest($1::text[], $2::bigint[]) AS a (name, since)
        JOIN $s.task_queues q ON q.name = a.name WHERE q.pause IS NULL AND NOT EXISTS (
            SELECT FROM $s.tasks t
            WHERE t.state = 3 AND t.check_at >= $3::bigint AND t.check_at <= (SELECT now FROM clock))
        AND ($3::bigint IS NULL OR NOT EXISTS (
            SELECT FROM $s.tasks t
            WHERE t.state < 3 AND t.runner_deadline IS NOT NULL AND t.runner_deadline >= $3::bigint
              AND t.runner_deadline <= (SELECT now FROM clock)))),
    due AS MATERIALIZED (
        SELECT t.row_id FROM clock c CROSS JOIN open o CROSS JOIN LATERAL (
            SELECT t.ctid AS row_id, t.id, t.run_at FROM $s.tasks t
            WHERE t.state = 0 AND t.lock IS NULL AND t.queue = o.name AND t.run_at >= o.since AND t.run_at <= c.now
            ORDER BY t.run_at, t.id LIMIT $MAX_ROWS FOR UPDATE SKIP LOCKED) t
        ORDER BY t.run_at, t.id LIMIT $MAX_ROWS),
    promoted AS (
        UPDATE $s.tasks t SET state = 2, ready_at = c.now, early = false FROM due d CROSS JOIN clock c WHERE t.ctid = d.row_id
        RETURNING t.queue),
    counted AS (
        INSERT INTO $s.task_counts
        SELECT queue, s.state, s.sign * count(*) FROM promoted, (VALUES (0::smallint, -1), (2::smallint, 1)) AS s (state, sign)
        GROUP BY queue, s.state, s.sign)
    SELECT now, (SELECT count(*) FROM promoted), ARRAY(SELECT name FROM open) FROM clock",
);

/// Selects due tasks with a lock in these queues.
pub(crate) static DUE_LOCKED: Sql = Sql::new(
    &[TEXTS],
    "SELECT t.id, t.lock, q.name FROM $s.task_queues q CROSS JOIN LATERAL (
        SELECT t.id, t.lock, t.run_at FROM $s.tasks t
        WHERE t.state = 0 AND t.lock IS NOT NULL AND t.queue = q.name AND t.run_at <= (SELECT $NOW)
        ORDER BY t.run_at, t.id LIMIT $MAX_ROWS) t
    WHERE q.name = ANY ($1) AND q.pause IS NULL ORDER BY t.run_at, t.id LIMIT $MAX_ROWS",
);

const LEASE_TYPES: &[Type] =
    &[TEXTS, BIGS, BIG, UUID, BIG, TEXTS, INTS, BIGS, BIGS, BOOL, BIGS, UUIDS, BIG, BOOL, BIG, BIG, BOOL];
pub(crate) static LEASE: Sql = Sql::built(LEASE_TYPES, || LEASE_TEMPLATE.replace("$DUE_FILTER", ""));
/// Like [`LEASE`], for tasks with a lock only.
pub(crate) static LEASE_LOCKED_DUE: Sql =
    Sql::built(LEASE_TYPES, || LEASE_TEMPLATE.replace("$DUE_FILTER", "AND t.lock IS NOT NULL"));
