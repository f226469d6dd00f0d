//! Fuzz target of the texts in the row of a lock.

use super::codec::{LockColumns, QUEUE, RECORD, TICKET_ROWS, add_tickets, read_queue, stored_record};
use crate::fuzz_corpus;
use crate::model::LockRecord;
use crate::store::ticket_rows::Layout;
use crate::testing::fuzz::{Shape, fuzz};

#[test]
fn postgres_locks_are_read_as_they_were_written() {
    fuzz(fuzz_corpus!("lock-records"), 3_000, |input| match serde_json::from_slice::<LockRecord>(input) {
        Ok(record) => {
            let columns = LockColumns::new(&record).unwrap();
            match columns.layout {
                QUEUE => assert_eq!(read_queue(&columns.queue.unwrap()).unwrap(), record.waiters),
                RECORD => {
                    assert_eq!(stored_record(Some(RECORD), &columns.record.unwrap()).unwrap(), record);
                }
                _ => assert!(record.waiters.is_empty()),
            }
            // A long queue is stored as rows.
            if let Layout::Rows(change) = Layout::choose(&record, None, 0) {
                let columns = LockColumns::listed(&record, &change).unwrap();
                let mut listed = stored_record(Some(TICKET_ROWS), &columns.record.unwrap()).unwrap();
                let row = |ticket: &crate::model::Ticket| {
                    let text = serde_json::to_string(ticket).unwrap();
                    serde_json::json!([text, ticket.expires_at, ticket.ticket_ttl, 0])
                };
                let rows: Vec<_> = record.waiters.iter().map(row).collect();
                add_tickets(&mut listed, &serde_json::to_string(&rows).unwrap()).unwrap();
                assert_eq!(listed, record);
            }
            Shape::of(&record)
        }
        Err(error) => {
            let text = String::from_utf8_lossy(input);
            let read = (stored_record(Some(TICKET_ROWS), &text).is_ok(), read_queue(&text).is_ok());
            Shape::of(&(read, Shape::of_text(&error)))
        }
    });
}
