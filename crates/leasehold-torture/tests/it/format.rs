//! Format of a recorded history.

use leasehold_torture::history::Event;
use leasehold_torture::{History, Report};

use super::checkers::history;

#[test]
fn a_history_is_read_as_it_was_written() {
    let fault = Event::Fault { worker: 1, fault: "kill".into(), millis: 0 };
    let written = history([(1, 0, Event::Started { worker: 1 }), (2, 0, fault), (3, 0, Event::Draining)]);
    let mut file = Vec::new();
    written.write(&mut file).unwrap();
    assert_eq!(History::read(file.as_slice()).unwrap(), written);
}

#[test]
fn what_is_no_history_is_refused_with_its_line() {
    let mut file = Vec::new();
    let mut empty = history([]);
    empty.records.clear();
    empty.write(&mut file).unwrap();
    let header = String::from_utf8(file).unwrap();
    for (text, expected) in [
        (String::new(), "line 1 is no header"),
        ("{}".to_owned(), "line 1 is no header"),
        (header.replace("\"format\":1", "\"format\":2"), "format 2, and this program reads format 1"),
        (format!("{header}nonsense"), "line 2 is no record"),
        (format!("{header}{{\"at\":1,\"process\":0,\"event\":\"star"), "line 2 is no record"),
        (format!("{header}\n"), "line 2 is no record"),
        (format!("{header}{}", "x".repeat(1 << 17)), "line 2 is longer than 65536 bytes"),
        ("x".repeat(1 << 17), "line 1 is longer than 65536 bytes"),
    ] {
        let error = History::read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn an_empty_history_shows_nothing() {
    let report = Report::of(&history([]));
    assert_eq!(report.violations, 0);
    assert!(!report.fit, "what was not checked is not fit");
}
