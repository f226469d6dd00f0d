//! SQLite without leasehold: a loop on one connection, with a sync for every commit.

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use rusqlite::{Connection, params};

use super::PAYLOAD;
use crate::clients::in_transaction;
use crate::measure::{Window, now};
use crate::rounds::Figures;
use crate::sandbox::Sandbox;

const TABLE: &str = "
    CREATE TABLE raw (id INTEGER PRIMARY KEY, priority INTEGER NOT NULL DEFAULT 0, state INTEGER NOT NULL DEFAULT 0,
        payload TEXT NOT NULL);
    CREATE INDEX ready ON raw (priority, id) WHERE state = 0;";
const INSERT: &str = "INSERT INTO raw (payload) VALUES (?)";
const FETCH: &str = "UPDATE raw SET state = 1 WHERE id IN
    (SELECT id FROM raw WHERE state = 0 ORDER BY priority, id LIMIT ?) RETURNING id, payload";
const DELETE: &str = "DELETE FROM raw WHERE id = ?";

/// Enqueues with one transaction per batch.
pub(in crate::tasks) fn enqueue(sandbox: &Sandbox, batch: u32, window: Window) -> Result<Figures> {
    let conn = open(sandbox)?;
    let mut times = Histogram::new(3)?;
    let mut begun = now();
    loop {
        in_transaction(&conn, || insert(&conn, u64::from(batch)))?;
        let ended = now();
        if ended >= window.until {
            return Ok(Figures::of_calls(times, batch, window));
        }
        if ended >= window.from {
            times.record(ended - begun)?;
        }
        begun = ended;
    }
}

/// Drains with two transactions per batch: one takes, one deletes.
pub(in crate::tasks) fn drain(sandbox: &Sandbox, tasks: u64, batch: u32) -> Result<Figures> {
    let conn = open(sandbox)?;
    in_transaction(&conn, || insert(&conn, tasks))?;
    let (begun, mut done) = (now(), 0);
    while done < tasks {
        let ids = in_transaction(&conn, || fetch(&conn, batch))?;
        ensure!(!ids.is_empty(), "tasks are left that cannot be taken");
        in_transaction(&conn, || delete(&conn, &ids))?;
        done += ids.len() as u64;
    }
    Ok(Figures::since(begun, tasks))
}

fn open(sandbox: &Sandbox) -> Result<Connection> {
    let conn = Connection::open(sandbox.raw_file())?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.execute_batch(TABLE)?;
    Ok(conn)
}

fn insert(conn: &Connection, rows: u64) -> rusqlite::Result<()> {
    let mut insert = conn.prepare_cached(INSERT)?;
    (0..rows).try_for_each(|_| insert.execute([PAYLOAD]).map(drop))
}

fn fetch(conn: &Connection, batch: u32) -> rusqlite::Result<Vec<i64>> {
    let mut fetch = conn.prepare_cached(FETCH)?;
    let ids = fetch.query_map(params![batch], |row| {
        let _payload: String = row.get(1)?;
        row.get(0)
    });
    ids?.collect()
}

fn delete(conn: &Connection, ids: &[i64]) -> rusqlite::Result<()> {
    let mut delete = conn.prepare_cached(DELETE)?;
    ids.iter().try_for_each(|id| delete.execute([id]).map(drop))
}
