//! Following what happens.

use serde_json::{Value, json};

use crate::lab::{Lab, both};
use crate::wire::Wire;

async fn once(lab: &Lab, name: &str) {
    let taken = lab.post(&format!("/api/v1/locks/{name}/acquire"), &json!({})).await;
    let lock = &taken.body["lock"];
    let mine = json!({ "leaseId": lock["leaseId"], "token": lock["token"] });
    assert_eq!(lab.post(&format!("/api/v1/locks/{name}/release"), &mine).await.status, 200);
}

/// The events in a stream: id and data.
fn events(text: &str) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    let mut id = String::new();
    for line in text.lines() {
        if let Some(new) = line.strip_prefix("id: ") {
            new.clone_into(&mut id);
        }
        if let Some(data) = line.strip_prefix("data: ") {
            found.push((id.clone(), serde_json::from_str(data).unwrap()));
        }
    }
    found
}

fn names(text: &str) -> Vec<(String, String)> {
    let part = |event: &Value, key: &str| event[key].as_str().unwrap().to_owned();
    events(text).iter().map(|(_, event)| (part(event, "lock"), part(event, "kind"))).collect()
}

#[tokio::test]
async fn whoever_listens_hears_what_happens_from_then_on() {
    let (labs, _folder) = both().await;
    for lab in labs {
        once(&lab, "before").await;
        let mut wire = Wire::send(&lab, "GET", "/api/v1/events", None).await;
        let begin = wire.hear("retry: 1000").await;
        assert!(begin.contains("text/event-stream") && begin.contains("x-accel-buffering: no"), "{begin}");
        once(&lab, "ü%2F1").await;
        let text = wire.hear("released").await;
        let heard = names(&text);
        let expected = ["acquired", "released"].map(|kind| ("ü/1".to_owned(), kind.to_owned()));
        assert_eq!(heard, expected);
        lab.stop().await;
        // The stream has ended with the server, and properly.
        assert!(wire.rest().await.ends_with("0\r\n\r\n"));
    }
}

#[tokio::test]
async fn a_listener_hears_only_what_it_wants() {
    let lab = Lab::open().await;
    let mut one = Wire::send(&lab, "GET", "/api/v1/events?lock=b%2F2", None).await;
    let mut some = Wire::send(&lab, "GET", "/api/v1/events?prefix=b%2F", None).await;
    for wire in [&mut one, &mut some] {
        wire.hear("retry: ").await;
    }
    for name in ["a", "b%2F1", "b%2F2"] {
        once(&lab, name).await;
    }
    let (one, some) =
        (names(&one.hear("released").await), names(&some.hear("b/2\",\"kind\":\"released").await));
    assert!(one.iter().all(|(lock, _)| lock == "b/2"), "{one:?}");
    assert_eq!(some.iter().map(|(lock, _)| lock.as_str()).collect::<Vec<_>>(), ["b/1", "b/1", "b/2", "b/2"]);
    assert_eq!(lab.get("/api/v1/events?lock=%20").await.code(), "INVALID");
    assert_eq!(lab.get("/api/v1/events?lastEventId=a%0Ab").await.code(), "INVALID");
    assert_eq!(lab.get("/api/v1/events?what=1").await.code(), "INVALID");
}

#[tokio::test]
async fn whoever_comes_back_misses_nothing_and_hears_nothing_twice() {
    let (labs, _folder) = both().await;
    for lab in labs {
        let mut wire = Wire::send(&lab, "GET", "/api/v1/events", None).await;
        wire.hear("retry: ").await;
        for n in 0..10 {
            once(&lab, &format!("lock-{n}")).await;
        }
        let all = events(&wire.hear("lock-9\",\"kind\":\"released").await);
        assert_eq!(all.len(), 20);
        // From every place there is, while others go on listening and more happens.
        for (place, (id, _)) in all.iter().enumerate() {
            let path = format!("/api/v1/events?lastEventId={}", id.replace('/', "%2F"));
            let mut back = Wire::send(&lab, "GET", &path, None).await;
            let last = format!("after-{place}");
            once(&lab, &last).await;
            let heard = events(&back.hear(&format!("{last}\",\"kind\":\"released")).await);
            let expected: Vec<_> = all[place + 1..].iter().map(|(_, event)| event).collect();
            let again: Vec<_> = heard.iter().map(|(_, event)| event).take(expected.len()).collect();
            assert_eq!(again, expected, "from {id}");
            let rest: Vec<_> = heard[expected.len()..].iter().map(|(_, event)| event.to_string()).collect();
            let mut once_each = rest.clone();
            once_each.dedup();
            assert_eq!(rest.len(), 2 * (place + 1), "from {id}: {rest:?}");
            assert_eq!(once_each, rest);
            back.cut();
        }
    }
}

#[tokio::test]
async fn the_id_comes_as_a_header_too() {
    let lab = Lab::open().await;
    once(&lab, "a").await;
    once(&lab, "b").await;
    let request = lab.request(reqwest::Method::GET, "/api/v1/events").header("last-event-id", "2~0");
    let mut response = request.send().await.unwrap();
    let mut text = String::new();
    while !text.contains("released") {
        text += std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap();
    }
    assert_eq!(names(&text)[0].0, "b");
}
