//! Fuzz target of the rows of tasks.

use rusqlite::Connection;

use super::codec::{decode, insert, save_admin_fields, save_lease, save_transition};
use super::transaction::{Statements, StoredTask};
use super::{QueueIds, sql};
use crate::fuzz_corpus;
use crate::model::{Task, TaskState, Timestamp, Ttl};
use crate::store::sqlite::schema::{ONE_INDEX, TABLES};
use crate::testing::fuzz::{Shape, fuzz};

#[test]
fn sqlite_tasks_are_read_as_they_were_stored() {
    let conn = Connection::open_in_memory().unwrap();
    conn.execute_batch(TABLES).unwrap();
    conn.execute_batch(ONE_INDEX).unwrap();
    fuzz(fuzz_corpus!("tasks"), 2_000, |input| match serde_json::from_slice::<Task>(input) {
        Ok(task) if is_storable(&task) => {
            conn.execute_batch("BEGIN").unwrap();
            let stored = stored(&conn, &task);
            conn.execute_batch("ROLLBACK").unwrap();
            assert_eq!(stored.unwrap(), task);
            Shape::of(&task)
        }
        Ok(_) => Shape::of(&"not storable"),
        Err(error) => Shape::of_text(&error),
    });
}

/// Stores all fields of a task, as different operations do, and reads it.
fn stored(conn: &Connection, task: &Task) -> rusqlite::Result<Task> {
    let mut queues = QueueIds::default();
    let queue = queues.id_or_create(conn, &task.queue)?;
    insert(conn, queue, task)?;
    let task = StoredTask { rowid: conn.last_insert_rowid(), queue_id: queue, task: task.clone() };
    let mut statements = Statements::new(conn);
    save_lease(&mut statements, &task, Ttl::from_secs(30))?;
    save_transition(&mut statements, &task)?;
    save_admin_fields(conn, &task)?;
    let stored = conn
        .prepare_cached(sql::LOAD_WITH_PAYLOAD)?
        .query_row([&task.id.as_uuid().as_bytes()[..]], |row| decode(row, conn, &mut queues));
    stored.map(|stored| stored.task)
}

/// Whether the rules can make the task: its numbers fit into the columns, and only a running task is
/// begun.
fn is_storable(task: &Task) -> bool {
    let optional = [task.leased_at, task.lease_expires_at, task.finished_at, task.runner_deadline];
    let times = [task.run_at, task.ready_at, task.created_at, task.updated_at].map(Some);
    let fits = |time: &Timestamp| i64::try_from(time.as_micros()).is_ok();
    times.iter().chain(&optional).flatten().all(fits)
        && i64::try_from(task.version).is_ok()
        && (task.state == TaskState::Running || !task.begun)
}
