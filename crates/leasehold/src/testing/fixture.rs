//! A fresh engine with two clients and a clock that moves by hand.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::Player;
use crate::model::{LeaseId, LockName};
use crate::store::{Clock, Store};

/// A fresh engine, seen by two clients, with a clock that moves only by hand.
pub struct Fixture {
    /// One client.
    pub one: Arc<dyn Store>,
    /// Another client of the same engine.
    pub two: Arc<dyn Store>,
    /// The time of both.
    pub clock: Clock,
    /// Lease ids are unique everywhere, also between tests that run side by side.
    first_id: u128,
    _kept: Box<dyn Any + Send>,
}

impl Fixture {
    /// Puts a fixture together; `kept` is dropped with it, such as a temporary folder.
    pub fn new(one: Arc<dyn Store>, two: Arc<dyn Store>, clock: Clock, kept: impl Any + Send) -> Self {
        let first_id = u128::from(fastrand::u64(1..)) << 64;
        Self { one, two, clock, first_id, _kept: Box::new(kept) }
    }

    /// Lets time pass.
    pub fn pass(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    /// Lets so much time pass, and as much more as the engine takes to be sure of it.
    pub fn outlast(&self, millis: u64) {
        self.pass(millis);
        self.clock.advance(self.one.abilities().grace);
    }

    /// Whether the engine has what a case needs; says so if it has not.
    pub fn can(&self, case: &str, needs: &[&str]) -> bool {
        let abilities = self.one.abilities();
        let lacks = abilities.lacks(needs);
        if let Some(what) = lacks {
            println!("{case} does not apply: {} has not {what}", abilities.engine);
        }
        lacks.is_none()
    }

    /// Somebody who asks for `lock` over one of the two clients, by turns.
    pub fn player(&self, number: u128, lock: &str) -> Player {
        let store = if number.is_multiple_of(2) { &self.two } else { &self.one };
        let mut player =
            Player::new(store.clone(), number, LockName::new(lock).expect("a good name in a test"));
        player.ask.lease_id = LeaseId::from_uuid(Uuid::from_u128(self.first_id + number));
        player
    }

    /// Several who ask for the same lock.
    pub fn players<const N: usize>(&self, lock: &str) -> [Player; N] {
        std::array::from_fn(|number| self.player(number as u128 + 1, lock))
    }
}
