//! Fresh engine with two clients and a manual clock.

use std::any::Any;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::TestClient;
use crate::model::{LeaseId, LockName};
use crate::store::{Clock, Store};

/// Fresh engine, accessed by two clients, with a manual clock.
pub struct Fixture {
    /// First client.
    pub one: Arc<dyn Store>,
    /// Second client of the same engine.
    pub two: Arc<dyn Store>,
    /// Clock of both clients.
    pub clock: Clock,
    /// Base of the lease ids, which are unique everywhere, also between tests that run
    /// concurrently.
    first_id: u128,
    _kept: Box<dyn Any + Send>,
}

impl Fixture {
    /// Creates a fixture; `kept` is dropped with it, for example a temporary folder.
    pub fn new(one: Arc<dyn Store>, two: Arc<dyn Store>, clock: Clock, kept: impl Any + Send) -> Self {
        let first_id = u128::from(fastrand::u64(1..)) << 64;
        Self { one, two, clock, first_id, _kept: Box::new(kept) }
    }

    /// Advances the clock.
    pub fn pass(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    /// Advances the clock by this time, and by the clock uncertainty of the engine.
    pub fn advance_past(&self, millis: u64) {
        self.pass(millis);
        self.clock.advance(self.one.capabilities().clock_uncertainty);
    }

    /// Returns whether the engine has the capabilities that a case needs. If not, prints the first
    /// missing one, and adds the case to the file that `LEASEHOLD_TEST_NOT_APPLICABLE` names, from
    /// which a runner can report it: a test cannot tell the test harness that it was skipped.
    pub fn can(&self, case: &str, needs: &[&str]) -> bool {
        let capabilities = self.one.capabilities();
        let Some(what) = capabilities.lacks(needs) else { return true };
        println!("{case} does not apply: {} has not {what}", capabilities.engine);
        if let Some(path) = std::env::var_os("LEASEHOLD_TEST_NOT_APPLICABLE") {
            let line = format!("{}\t{case}\t{what}\n", capabilities.engine);
            // One write, so that lines of concurrent tests do not mix.
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the case can be reported");
        }
        false
    }

    /// Creates a caller for `lock` on one of the two clients: odd numbers use the first client,
    /// even numbers the second.
    pub fn client(&self, number: u128, lock: &str) -> TestClient {
        let store = if number.is_multiple_of(2) { &self.two } else { &self.one };
        let mut client =
            TestClient::new(store.clone(), number, LockName::new(lock).expect("a good name in a test"));
        client.request.lease_id = LeaseId::from_uuid(Uuid::from_u128(self.first_id + number));
        client
    }

    /// Creates several callers for the same lock.
    pub fn clients<const N: usize>(&self, lock: &str) -> [TestClient; N] {
        std::array::from_fn(|number| self.client(number as u128 + 1, lock))
    }
}
