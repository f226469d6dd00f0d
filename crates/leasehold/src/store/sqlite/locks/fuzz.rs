//! Fuzz targets of the events in the row of a lock.

use super::row::InlineEvents;
use crate::fuzz_corpus;
use crate::model::Event;
use crate::testing::fuzz::{Shape, fuzz};

#[test]
fn sqlite_events_are_read_as_they_were_written() {
    fuzz(fuzz_corpus!("events"), 3_000, |input| match serde_json::from_slice::<Event>(input) {
        Ok(event) => {
            let mut events = InlineEvents::default();
            for seq in [i64::MIN, 3, i64::MAX] {
                events.push(seq, &event).unwrap();
            }
            assert_eq!(events.last(), Some(i64::MAX));
            assert_eq!(events.events().unwrap(), [i64::MAX, 3, i64::MIN].map(|seq| (seq, event.clone())));
            Shape::of(&event)
        }
        Err(error) => Shape::of_text(&error),
    });
}

#[test]
fn sqlite_events_of_any_text_are_refused_or_read() {
    fuzz(fuzz_corpus!("sqlite-events"), 3_000, |input| {
        let events = InlineEvents::new(String::from_utf8_lossy(input).into_owned());
        let read = events.events();
        if let Ok(read) = &read {
            let mut again = InlineEvents::default();
            read.iter().rev().for_each(|(seq, event)| again.push(*seq, event).unwrap());
            assert_eq!(again.events().unwrap(), *read);
        }
        Shape::of(&(events.last().is_some(), events.is_long(), read.map_err(|error| error.to_string())))
    });
}
