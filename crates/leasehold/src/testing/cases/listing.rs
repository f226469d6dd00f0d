//! Reading records: one, many, in pages, and with unusual names.

use crate::model::LockName;
use crate::store::{ListLocks, LockState};
use crate::testing::Fixture;

pub async fn an_unknown_lock_has_no_record(f: Fixture) {
    let name = LockName::new("nobody asked").expect("a good name");
    assert!(f.one.locks().get(&name).await.expect("an answer").is_none());
}

pub async fn a_stored_record_is_returned_unchanged(f: Fixture) {
    let [a, b, c] = f.clients("lock");
    let (a, b) =
        (a.slots(2).meta("user", "ada\nlove \"lace\"").of_boot(3), b.slots(2).priority(-7).meta("k", "ü"));
    let lease = a.acquire().await;
    let mut asked = a.request.clone();
    if !f.one.capabilities().trusts_process_state() {
        asked.process = None;
    }
    b.acquire().await;
    c.shared().expect_queued().await;
    let (one, two) = (f.one.locks().get(&a.lock).await, f.two.locks().get(&a.lock).await);
    let record = one.expect("an answer").expect("a record");
    assert_eq!(Some(&record), two.expect("an answer").as_ref());
    assert_eq!(record.holders[0], lease);
    assert_eq!(*record.holders[0].request, asked);
    assert_eq!(*record.holders[1].request, b.request);
}

pub async fn locks_are_listed_by_name_in_pages(f: Fixture) {
    for number in [4, 1, 5, 3, 2] {
        f.client(number, &format!("lock-{number}")).acquire().await;
    }
    let mut query = ListLocks { limit: 2, ..ListLocks::default() };
    let mut pages = Vec::new();
    loop {
        let page = f.two.locks().list(&query).await.expect("a page");
        pages.push(page.items.iter().map(|record| record.name.to_string()).collect::<Vec<_>>());
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    assert!(pages.iter().all(|page| page.len() <= 2));
    assert_eq!(pages.concat(), ["lock-1", "lock-2", "lock-3", "lock-4", "lock-5"]);
}

pub async fn locks_are_listed_by_prefix(f: Fixture) {
    for (number, name) in (1..).zip(["a/1", "a/2", "b/1", "a_1", "A/1", "a%"]) {
        f.client(number, name).acquire().await;
    }
    for (prefix, expected) in
        [("a/", vec!["a/1", "a/2"]), ("a_", vec!["a_1"]), ("a%", vec!["a%"]), ("zz", vec![])]
    {
        let query = ListLocks { prefix: Some(prefix.to_owned()), ..ListLocks::default() };
        let page = f.one.locks().list(&query).await.expect("a page");
        assert_eq!(
            page.items.iter().map(|record| record.name.as_str()).collect::<Vec<_>>(),
            expected,
            "{prefix}"
        );
    }
}

pub async fn locks_are_listed_by_state(f: Fixture) {
    let [free, held, waited, ended] =
        [(1, "free"), (2, "held"), (3, "waited"), (4, "ended")].map(|(number, name)| f.client(number, name));
    ended.acquire().await;
    f.pass(9_000);
    let lease = free.acquire().await;
    free.release(&lease).await;
    held.acquire().await;
    waited.acquire().await;
    f.client(5, "waited").expect_queued().await;
    f.pass(1_000);
    for (state, expected) in [
        (LockState::Held, vec!["held", "waited"]),
        (LockState::Free, vec!["ended", "free"]),
        (LockState::Waited, vec!["waited"]),
        (LockState::InUse, vec!["held", "waited"]),
        (LockState::Stale, vec!["ended"]),
    ] {
        let query = ListLocks { state: Some(state), ..ListLocks::default() };
        let page = f.one.locks().list(&query).await.expect("a page");
        assert_eq!(
            page.items.iter().map(|record| record.name.as_str()).collect::<Vec<_>>(),
            expected,
            "{state:?}"
        );
    }
}

pub async fn names_with_special_characters_are_stored_verbatim(f: Fixture) {
    let long = "x".repeat(255);
    let odd =
        ["'; DROP TABLE locks; --", "a\"b", "$(touch x)", "{x}", "名前/🔒", "a b", "%", "..", "-rf", &long];
    for (number, name) in (1..).zip(odd) {
        let (client, other) = (f.client(number, name), f.client(number + 100, name));
        let lease = client.acquire().await;
        other.expect_conflict().await;
        assert_eq!(client.record().await.name.as_str(), name);
        client.release(&lease).await;
        other.acquire().await;
    }
}
