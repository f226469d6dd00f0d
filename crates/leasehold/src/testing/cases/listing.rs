//! Reading records: one, many, in pages, and with unusual names.

use crate::model::LockName;
use crate::store::{ListLocks, LockState};
use crate::testing::Fixture;

pub async fn an_unknown_lock_has_no_record(f: Fixture) {
    let name = LockName::new("nobody asked").expect("a good name");
    assert!(f.one.locks().get(&name).await.expect("an answer").is_none());
}

pub async fn what_was_stored_comes_back_as_it_was(f: Fixture) {
    let [a, b, c] = f.players("lock");
    let (a, b) =
        (a.slots(2).meta("user", "ada\nlove \"lace\"").of_boot(3), b.slots(2).priority(-7).meta("k", "ü"));
    let lease = a.takes().await;
    let mut asked = a.ask.clone();
    if !f.one.capabilities().believes_in_processes() {
        asked.process = None;
    }
    b.takes().await;
    c.shared().queues().await;
    let (one, two) = (f.one.locks().get(&a.lock).await, f.two.locks().get(&a.lock).await);
    let record = one.expect("an answer").expect("a record");
    assert_eq!(Some(&record), two.expect("an answer").as_ref());
    assert_eq!(record.holders[0], lease);
    assert_eq!(*record.holders[0].ask, asked);
    assert_eq!(*record.holders[1].ask, b.ask);
}

pub async fn locks_are_listed_by_name_in_pages(f: Fixture) {
    for number in [4, 1, 5, 3, 2] {
        f.player(number, &format!("lock-{number}")).takes().await;
    }
    let mut ask = ListLocks { limit: 2, ..ListLocks::default() };
    let mut pages = Vec::new();
    loop {
        let page = f.two.locks().list(&ask).await.expect("a page");
        pages.push(page.items.iter().map(|record| record.name.to_string()).collect::<Vec<_>>());
        match page.next {
            Some(next) => ask.after = Some(next),
            None => break,
        }
    }
    assert!(pages.iter().all(|page| page.len() <= 2));
    assert_eq!(pages.concat(), ["lock-1", "lock-2", "lock-3", "lock-4", "lock-5"]);
}

pub async fn locks_are_listed_by_prefix(f: Fixture) {
    for (number, name) in (1..).zip(["a/1", "a/2", "b/1", "a_1", "A/1", "a%"]) {
        f.player(number, name).takes().await;
    }
    for (prefix, expected) in
        [("a/", vec!["a/1", "a/2"]), ("a_", vec!["a_1"]), ("a%", vec!["a%"]), ("zz", vec![])]
    {
        let ask = ListLocks { prefix: Some(prefix.to_owned()), ..ListLocks::default() };
        let page = f.one.locks().list(&ask).await.expect("a page");
        assert_eq!(
            page.items.iter().map(|record| record.name.as_str()).collect::<Vec<_>>(),
            expected,
            "{prefix}"
        );
    }
}

pub async fn locks_are_listed_by_state(f: Fixture) {
    let [free, held, waited, ended] =
        [(1, "free"), (2, "held"), (3, "waited"), (4, "ended")].map(|(number, name)| f.player(number, name));
    ended.takes().await;
    f.pass(9_000);
    let lease = free.takes().await;
    free.releases(&lease).await;
    held.takes().await;
    waited.takes().await;
    f.player(5, "waited").queues().await;
    f.pass(1_000);
    for (state, expected) in [
        (LockState::Held, vec!["held", "waited"]),
        (LockState::Free, vec!["ended", "free"]),
        (LockState::Waited, vec!["waited"]),
        (LockState::InUse, vec!["held", "waited"]),
        (LockState::Stale, vec!["ended"]),
    ] {
        let ask = ListLocks { state: Some(state), ..ListLocks::default() };
        let page = f.one.locks().list(&ask).await.expect("a page");
        assert_eq!(
            page.items.iter().map(|record| record.name.as_str()).collect::<Vec<_>>(),
            expected,
            "{state:?}"
        );
    }
}

pub async fn odd_names_are_only_names(f: Fixture) {
    let long = "x".repeat(255);
    let odd =
        ["'; DROP TABLE locks; --", "a\"b", "$(touch x)", "{x}", "名前/🔒", "a b", "%", "..", "-rf", &long];
    for (number, name) in (1..).zip(odd) {
        let (player, other) = (f.player(number, name), f.player(number + 100, name));
        let lease = player.takes().await;
        other.is_refused().await;
        assert_eq!(player.record().await.name.as_str(), name);
        player.releases(&lease).await;
        other.takes().await;
    }
}
