//! Lease ids that callers use again: what a server knows about an earlier lease or ticket gives no access to
//! a later one with the same id.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::{
    Acquire, Holder, LeaseId, LockName, LockOp, LockRecord, LockRequest, Outcome, Timestamp, Ttl, Withdraw,
};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Clock, Store};
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role, Server};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::test_server::{Reply, TestServer};

/// Two servers over one store whose clock the test controls, with two workers.
struct Fixture {
    leasehold: Leasehold,
    clock: Clock,
    servers: [TestServer; 2],
    bob: String,
    eve: String,
    name: LockName,
    id: LeaseId,
}

impl Fixture {
    async fn new() -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let leasehold = Leasehold::with_store(Arc::new(MemoryStore::with_clock(clock.clone()))).unwrap();
        let token_store = TokenStore::new(leasehold.clone());
        let token = async |name| token_store.create(name, Role::Worker, None).await.unwrap().text;
        let (bob, eve) = (token("bob").await, token("eve").await);
        let server = async || {
            let builder = Server::builder(leasehold.clone()).access(Access::Tokens(Vec::new()));
            TestServer::serve(builder.without_maintenance().build(), leasehold.clone()).await
        };
        let servers = [server().await, server().await];
        let (name, id) = (LockName::new("a").unwrap(), LeaseId::from_uuid(Uuid::from_u128(7)));
        Self { leasehold, clock, servers, bob, eve, name, id }
    }

    async fn post(&self, server: usize, token: &str, call: &str, body: &Value) -> Reply {
        let path = format!("/api/v1/locks/a/{call}");
        Reply::of(self.servers[server].request(Method::POST, &path).bearer_auth(token).json(body)).await
    }

    /// Opens a server as a store, with this token.
    async fn store(&self, server: usize, token: &str) -> Arc<dyn Store> {
        let url = self.servers[server].base.replace("http://", &format!("http://{token}@"));
        Leasehold::connect(&url).await.unwrap().store()
    }

    async fn record(&self) -> LockRecord {
        self.leasehold.store().locks().get(&self.name).await.unwrap().unwrap()
    }
}

#[tokio::test]
async fn the_owner_of_an_expired_lease_does_not_own_a_later_one() {
    let fixture = Fixture::new().await;
    let acquire = json!({ "leaseId": fixture.id, "ttlSeconds": 600 });
    assert_eq!(fixture.post(0, &fixture.eve, "acquire", &acquire).await.status, 200);
    fixture.clock.advance(Duration::from_secs(601));
    fixture.leasehold.store().locks().sweep(10).await.unwrap();
    assert!(fixture.record().await.holders.is_empty());
    let held = fixture.post(1, &fixture.bob, "acquire", &acquire).await;
    assert_eq!(held.status, 200, "{}", held.body);
    let before = fixture.record().await;
    let seen = json!({ "leaseId": fixture.id, "token": held.body["lock"]["token"] });
    for call in ["release", "renew"] {
        let refused = fixture.post(0, &fixture.eve, call, &seen).await;
        assert_eq!((refused.status, refused.code()), (403, "FORBIDDEN"), "{call}: {}", refused.body);
    }
    let refused = fixture.post(0, &fixture.eve, "acquire", &acquire).await;
    assert_eq!((refused.status, refused.code()), (403, "FORBIDDEN"), "{}", refused.body);
    assert_eq!(fixture.record().await, before);
    assert_eq!(fixture.post(0, &fixture.bob, "release", &seen).await.status, 200);
}

#[tokio::test]
async fn the_owner_of_a_withdrawn_ticket_does_not_own_a_later_one() {
    let fixture = Fixture::new().await;
    let _guard = fixture.leasehold.lock("a").acquire().await.unwrap();
    let wait = |queue: Option<Ttl>| {
        let request = LockRequest::new(fixture.id, Holder::new("client").unwrap(), Ttl::from_secs(600));
        LockOp::Acquire(Acquire { request: Arc::new(request), queue, steal_after: None })
    };
    let withdraw = LockOp::Withdraw(Withdraw { lease_id: fixture.id });
    let ticket_ttl = Some(Ttl::from_secs(600));
    let [eve, eve_elsewhere] = [fixture.store(0, &fixture.eve).await, fixture.store(1, &fixture.eve).await];
    let outcome = eve.locks().apply(&fixture.name, &wait(ticket_ttl)).await.unwrap();
    assert!(matches!(outcome, Outcome::Queued(_)), "{outcome:?}");
    // The first server does not see the end of this ticket.
    let outcome = eve_elsewhere.locks().apply(&fixture.name, &withdraw).await.unwrap();
    assert_eq!(outcome, Outcome::Withdrawn);
    let bob = fixture.store(1, &fixture.bob).await;
    let outcome = bob.locks().apply(&fixture.name, &wait(ticket_ttl)).await.unwrap();
    assert!(matches!(outcome, Outcome::Queued(_)), "{outcome:?}");
    let before = fixture.record().await;
    for op in [withdraw.clone(), wait(None), wait(Some(Ttl::from_millis(1)))] {
        let refused = eve.locks().apply(&fixture.name, &op).await.unwrap_err();
        assert_eq!(refused.code(), "STORE_NOT_PERMITTED", "{refused}");
        assert_eq!(fixture.record().await.waiters, before.waiters);
    }
    assert_eq!(bob.locks().apply(&fixture.name, &withdraw).await.unwrap(), Outcome::Withdrawn);
}
